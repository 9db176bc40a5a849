"""Meta-training of everything that goes side by side, in one compiled loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray
from rich.console import Console

from .._learner import Learner, LearnerState
from .._prior import Prior
from .._task import Task
from .distributed import bring_home, everywhere, share_out
from .folder import RunFolder
from .kept import Kept
from .parallel import over_seeds
from .progress import sparkline
from .setup import Setup, TaskSource, draw
from .stages import Advance, train_in_chunks
from .statistics import finite
from .trackers import Tracker


class Lanes(NamedTuple):
    """The trainings that go side by side: one for each seed, or for each seed in each of several conditions."""

    keys: Key[Array, " lanes"]
    splits: Any
    """The arrays of each, see `Setup.split`, along a leading axis."""


def train(
    setup: Setup,
    lanes: Lanes,
    folder: RunFolder,
    *,
    console: Console | None = None,
    trackers: tuple[Tracker, ...] = (),
) -> tuple[Prior, float]:
    """Train all lanes, from the newest checkpoint if there is one.

    **Returns:** their priors, along a leading axis, and the seconds it took.
    """

    setup.check(jax.tree.map(lambda leaf: leaf[0], lanes.splits))

    def init(lane: Lanes) -> Kept:
        return Kept.begin(setup.learner_for(lane.splits), setup.init(jax.random.fold_in(lane.keys, 0)))

    kept, seconds = train_in_chunks(
        folder,
        over_seeds(init)(lanes),
        _advance(setup, lanes),
        num_steps=setup.num_updates,
        chunk=setup.chunk,
        console=console,
        trackers=trackers,
    )
    return bring_home(kept.prior), seconds


def train_chunk(
    setup: Setup,
    learner: Learner,
    lane: tuple[Kept, PRNGKeyArray, Any],
    train_tasks: TaskSource,
    start: Array,
    length: int,
    *,
    share: Callable[[Task], Task] = lambda tasks: tasks,
) -> tuple[Kept, dict[str, Array]]:
    """`length` updates of one training, from update `start` on, and how they went.

    **Arguments:** `lane`: where it is, its key and its split; `share`: what to do with the tasks of every update.
    """
    kept, key, split = lane

    def update(state: LearnerState, step: Array) -> tuple[LearnerState, Any]:
        task_key, update_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 1), step))
        tasks = share(draw(train_tasks, task_key, split))
        state, info = learner.update(setup.loss_fn, state, tasks, key=update_key)
        return state, (info.query_loss, info.num_failed, jnp.mean(info.residual))

    steps = start + jnp.arange(length, dtype=jnp.int32)
    state, (losses, failed, residual) = jax.lax.scan(update, kept.state, steps)
    loss = jnp.nanmean(losses)
    metrics = {"query_loss": loss, "num_failed": jnp.sum(failed), "residual": jnp.nanmean(residual)}
    return kept.after(state, loss, keep_best=setup.keep_best), metrics


def _advance(setup: Setup, lanes: Lanes) -> Advance[Kept]:
    """Updates of all lanes in one compiled loop, and what to say about them."""

    def chunk(
        one: tuple[Kept, PRNGKeyArray, Any], train_tasks: TaskSource, start: Array, length: int
    ) -> tuple[Kept, Any]:
        learner = setup.learner_for(one[2])
        return everywhere(train_chunk(setup, learner, one, train_tasks, start, length, share=share_out))

    compiled = over_seeds(chunk, at_once=setup.lanes_at_once)

    def advance(kept: Kept, step: int, length: int) -> tuple[Kept, dict[str, Any], str]:
        start = jnp.asarray(step, jnp.int32)
        kept, metrics = compiled((kept, lanes.keys, lanes.splits), setup.train_tasks, start, length)
        row = _row(metrics, kept.state.prior)
        return kept, row, _note(row, kept.state.prior)

    return advance


def _row(measured: dict[str, Array], prior: Prior) -> dict[str, Any]:
    metrics = jax.device_get(measured)
    row: dict[str, Any] = {name: [finite(float(value)) for value in values] for name, values in metrics.items()}
    row["num_failed"] = [int(value) for value in metrics["num_failed"]]
    row["log_variance"] = [[finite(float(v)) for v in variances] for variances in np.asarray(prior.log_variance)]
    return row


def _note(row: dict[str, Any], prior: Prior) -> str:
    losses = [loss for loss in row["query_loss"] if loss is not None]
    loss = f"loss {np.mean(losses):.3g}" if losses else "loss none"
    failed = f", {sum(row['num_failed'])} tasks failed" if sum(row["num_failed"]) else ""
    return f"{loss}{failed}  σ² {sparkline(np.asarray(prior.log_variance).mean(axis=0).tolist())}"
