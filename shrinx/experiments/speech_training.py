"""Two ways to train WaveNet on many speakers: all of them mixed (pretraining), or as tasks (meta-learning)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from .._learner import Learner, LearnerState
from .._packing import Packing
from .._prior import Prior
from .._problem import Progress
from ..models.wavenet import WaveNet
from ..runs.progress import sparkline
from ..runs.stages import Advance
from ..runs.statistics import finite
from ..tasks.speech import Recordings, draw_mixed_strings, draw_rows, tasks_of

LONGEST_STEP = 1.0
"""Pretraining clips gradients to this norm."""

Measured = tuple[Array, Array]
"""The loss of an update and how many of its tasks failed."""


@dataclass(frozen=True)
class Trainer:
    """How a prior is trained; a state is whatever `init` makes. Inside, parameters are packed."""

    init: Callable[[Prior], Any]
    update: Callable[[Any, Recordings, Array, PRNGKeyArray], tuple[Any, Measured]]
    """`update(state, recordings, speakers, key)`."""
    prior: Callable[[Any], Prior]


def mixed_trainer(
    network: WaveNet,
    packing: Packing,
    rate: optax.ScalarOrSchedule,
    *,
    num_support: int,
    num_strings: int,
    num_frames: int,
) -> Trainer:
    """Adam on strings of all speakers, from the utterances that are not kept for queries."""
    optimiser = optax.chain(optax.clip_by_global_norm(LONGEST_STEP), optax.adam(rate))

    loss_fn = packing.loss_fn(network.negative_log_likelihood)

    def init(prior: Prior) -> Any:
        packed = packing.pack_prior(prior)
        return packed, optimiser.init(packed.mean)

    def update(state: Any, recordings: Recordings, speakers: Array, key: PRNGKeyArray) -> tuple[Any, Measured]:
        prior, opt_state = state
        support = recordings.between(0, num_support)
        speech = draw_mixed_strings(key, support, speakers, num_strings=num_strings, num_frames=num_frames)
        loss, gradient = jax.value_and_grad(loss_fn)(prior.mean, speech)
        moves, opt_state = optimiser.update(gradient, opt_state)
        mean = jax.tree.map(jnp.add, prior.mean, moves)
        return (eqx.tree_at(lambda prior: prior.mean, prior, mean), opt_state), (loss, jnp.zeros((), jnp.int32))

    return Trainer(init, update, lambda state: packing.unpack_prior(state[0]))


class _TaskState(NamedTuple):
    learner: LearnerState
    progress: Progress | None
    """Of all speakers, if they come back."""


def task_trainer(
    network: WaveNet,
    packing: Packing,
    learner: Learner,
    *,
    num_tasks: int,
    num_support: int,
    num_query: int,
    num_returning: int = 0,
) -> Trainer:
    """Meta-learning: every update adapts to some speakers, all from the mean unless there are `num_returning`."""
    loss_fn = packing.loss_fn(network.negative_log_likelihood)

    def update(state: _TaskState, recordings: Recordings, speakers: Array, key: PRNGKeyArray) -> tuple[Any, Measured]:
        if num_returning not in (0, len(speakers)):
            raise ValueError(f"All {len(speakers)} speakers come back or none, not {num_returning}.")
        task_key, update_key = jax.random.split(key)
        rows = draw_rows(task_key, len(speakers), num_tasks)
        tasks = tasks_of(recordings, speakers[rows], num_support=num_support, num_query=num_query)
        tasks = replace(tasks, progress=jax.tree.map(lambda leaf: leaf[rows], state.progress))
        after, info = learner.update(loss_fn, state.learner, tasks, key=update_key)
        progress = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new), state.progress, info.progress)
        return _TaskState(after, progress), (info.query_loss, info.num_failed)

    def init(prior: Prior) -> _TaskState:
        packed = packing.pack_prior(prior)
        progress = learner.progress(packed, num_returning) if num_returning else None
        return _TaskState(learner.init(packed), progress)

    return Trainer(init, update, lambda state: packing.unpack_prior(state.learner.prior))


def advance_with(trainer: Trainer, recordings: Recordings, speakers: Array, key: PRNGKeyArray) -> Advance[Any]:
    """What `train_in_chunks` calls: `length` updates in one compiled loop, and what to say about them."""

    @eqx.filter_jit
    def chunk(state: Any, recordings: Recordings, speakers: Array, start: Array, length: int) -> tuple[Any, Measured]:
        def update(state: Any, step: Array) -> tuple[Any, Measured]:
            return trainer.update(state, recordings, speakers, jax.random.fold_in(key, step))

        state, (losses, failed) = jax.lax.scan(update, state, start + jnp.arange(length, dtype=jnp.int32))
        return state, (jnp.nanmean(losses), jnp.sum(failed))

    def advance(state: Any, step: int, length: int) -> tuple[Any, dict[str, Any], str]:
        state, (loss, failed) = chunk(state, recordings, speakers, jnp.asarray(step, jnp.int32), length)
        log_variance = np.asarray(trainer.prior(state).log_variance)
        row: dict[str, Any] = {"query_loss": [finite(float(loss))], "num_failed": [int(failed)]}
        note = f"loss {float(loss):.4g}" + (f", {int(failed)} tasks failed" if int(failed) else "")
        if np.isfinite(log_variance).any():
            row["log_variance"] = [[finite(float(value)) for value in log_variance]]
            note += f"  σ² {sparkline(log_variance.tolist())}"
        return state, row, note

    return advance
