"""Adapting to held-out speakers side by side, in pieces that can be watched, interrupted and gone on with."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray
from rich.console import Console

from .._pace import Pace
from .._packing import Packing
from .._prior import Prior
from .._problem import Problem, make_problem
from .._solver import AbstractSolver
from .._task import Task
from .._tree import tree_where
from .._types import Params, SampleFn
from ..models.wavenet import WaveNet
from ..runs import checkpoint
from ..runs.interruption import heed
from ..runs.progress import meter
from ..tasks.speech import Recordings

CHECKPOINT_SECONDS = 60.0
"""Rarer than in training: a voice is four networks large (where it is, Adam's two moments, its average)."""


class Adaptation(eqx.Module):
    """What is to be done: speakers as tasks, the prior they are adapted from, and how."""

    network: WaveNet
    prior: Prior
    tasks: Task
    solver: AbstractSolver
    keys: Key[Array, " voices"]
    sample: SampleFn
    trainable: tuple[str, ...] | None = eqx.field(static=True, default=None)

    @property
    def packing(self) -> Packing:
        return Packing(self.prior)

    def problem(self, support: Recordings, key: PRNGKeyArray) -> Problem:
        """Of one speaker, with packed parameters."""
        packing = self.packing
        return make_problem(
            packing.loss_fn(self.network.negative_log_likelihood),
            packing.pack_prior(self.prior),
            support,
            self.solver,
            num_steps=1,
            key=key,
            sample=self.sample,
            trainable=self.trainable,
        )


class Voices(NamedTuple):
    """How far it has come. All leaves have a leading axis of voices."""

    adapting: Any
    kept: Params
    """The (packed) parameters after the step at which voices stop."""
    curve: Float[Array, "*voices points"]
    """Negative log-likelihood of the query strings; NaN where adaptation has not been yet."""


def adapt_voices(
    adaptation: Adaptation,
    *,
    steps: tuple[int, ...],
    stop: int,
    folder: Path | None = None,
    console: Console | None = None,
) -> tuple[Params, Float[Array, "voices points"]]:
    """Adapt to all speakers side by side, from where an interrupted call has left off in `folder`.

    **Arguments:** `steps`, after which to see how well the query strings are predicted, from 0 on; `stop`, one of them.

    **Returns:** the parameters after `stop`, one set per voice, and the negative log-likelihood after each of `steps`.
    """
    if steps[-1] == 0:
        return _unadapted(adaptation)
    voices, done = start(adaptation, len(steps)), -1
    if folder is not None:
        done, voices = checkpoint.restore(folder, voices) or (done, voices)

    def save() -> None:
        if folder is not None and done > 0:
            checkpoint.save(folder, done, voices, keep=1)

    pace, saved, note = Pace(), time.monotonic(), ""
    with meter(steps[-1], max(done, 0), console) as progress:
        try:
            while done < steps[-1]:
                first = max(done, 0)
                last = min(first + pace.length, next(step for step in steps if step > done))
                place = steps.index(last) if last in steps else -1
                further = jax.block_until_ready(advance(adaptation, voices, *_numbers(first, last, place, stop)))
                voices, done = further, last
                note = f"{jnp.mean(voices.curve[:, place]):.4g}" if place >= 0 else note
                progress.advance(done, note)
                heed()
                pace.lap()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            save()
            raise
    return jax.vmap(adaptation.packing.unpack)(voices.kept), voices.curve


@eqx.filter_jit
def start(adaptation: Adaptation, num_points: int) -> Voices:
    def one(support: Recordings, key: PRNGKeyArray) -> Voices:
        problem = adaptation.problem(support, key)
        return Voices(problem.start(problem.prior), problem.prior.mean, jnp.full(num_points, jnp.nan))

    return jax.vmap(one)(adaptation.tasks.support, adaptation.keys)


@eqx.filter_jit
def advance(
    adaptation: Adaptation,
    voices: Voices,
    first: Int[Array, ""],
    last: Int[Array, ""],
    place: Int[Array, ""],
    stop: Int[Array, ""],
) -> Voices:
    """From after `first` to after `last` steps, which is this `place` of the curve, or -1: none."""
    tasks, loss_fn = adaptation.tasks, adaptation.packing.loss_fn(adaptation.network.negative_log_likelihood)

    def one(support: Recordings, key: PRNGKeyArray, adapting: Any) -> tuple[Any, Params]:
        problem = adaptation.problem(support, key)
        adapting = problem.advance(problem.prior, adapting, first, last)
        return adapting, problem.reached(problem.prior, adapting)

    adapting, params = jax.vmap(one)(tasks.support, adaptation.keys, voices.adapting)
    return Voices(
        adapting=adapting,
        kept=tree_where(last == stop, params, voices.kept),
        curve=jax.lax.cond(
            place >= 0,
            lambda: voices.curve.at[:, place].set(jax.vmap(loss_fn)(params, tasks.query)),
            lambda: voices.curve,
        ),
    )


@eqx.filter_jit
def _unadapted(adaptation: Adaptation) -> tuple[Params, Float[Array, "voices 1"]]:
    """Without a step there is nothing to compile but the network itself."""
    count, query = len(adaptation.keys), adaptation.tasks.query
    assert query is not None
    voices = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), adaptation.prior.mean)
    return voices, jax.vmap(adaptation.network.negative_log_likelihood)(voices, query)[:, None]


def _numbers(*values: int) -> tuple[Int[Array, ""], ...]:
    """Not known to the compiler, so that one program does for all pieces."""
    return tuple(jnp.asarray(value, jnp.int32) for value in values)
