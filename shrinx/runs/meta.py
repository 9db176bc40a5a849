"""The loop of every meta-learning experiment: seeds under vmap, updates in compiled chunks, a checkpoint after each.

All randomness is a function of seed and step, and a chunk always starts at a multiple of its length. A run that was
interrupted therefore repeats exactly what the uninterrupted one would have done.
"""

import errno
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray
from rich.console import Console

from .._evaluate import adaptation_curve
from .._learner import Learner, LearnerState
from .._prior import Prior
from .._select import AbstractRule, LargestGap, select
from .._solver import AbstractSolver
from .._task import Task
from .._types import LossFn
from . import checkpoint
from .distributed import bring_home, everywhere, from_first, notice_loss, share_out
from .errors import UserError
from .folder import RunFolder, read_metrics
from .parallel import over_seeds
from .progress import meter, sparkline
from .statistics import finite, half_width, summarise
from .trackers import Tracker
from .watch import LostProcessError

TaskSource: TypeAlias = Callable[..., Task]
"""`source(key)`, or `source(key, split)` if the setup has splits, draws a batch of tasks inside the compiled loop.
A source that holds a data set is an `eqx.Partial`: its arrays are then arguments of the compiled program instead of
constants in it."""


@dataclass(frozen=True)
class Setup:
    """What an experiment hands to the loop."""

    learner: Learner
    loss_fn: LossFn
    init: Callable[[PRNGKeyArray], Prior]
    train_tasks: TaskSource
    test_tasks: TaskSource
    num_updates: int
    adapt_steps: int
    """Steps of adaptation at which held-out tasks are scored."""
    metric_name: str
    validation_tasks: TaskSource | None = None
    """For choosing hyperparameters; by default tasks as in the test, but others."""
    split: Callable[[int], Any] | None = None
    """From a seed to arrays of its own, such as the classes it trains on; the sources get them after the key."""
    curve_steps: int | None = None
    """How far adaptation curves go; ten times `adapt_steps` by default."""
    solver: AbstractSolver | None = None
    """For held-out tasks; the learner's own by default."""
    metric_fn: LossFn | None = None
    lower_is_better: bool = True
    rule: AbstractRule = field(default_factory=LargestGap)
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further sets of modules to score, besides all, each alone, and the selected ones."""
    chunk: int = 500
    test_chunk: int | None = None
    """So many held-out tasks are adapted at a time, to save memory; all by default."""
    extras: Callable[["Outcome"], dict[str, Any]] | None = None
    """What the experiment itself adds to the result: figures, example predictions."""

    def splits(self, seeds: Sequence[int]) -> Any:
        """The arrays of each seed, along a leading axis; `None` if there are none."""
        if self.split is None:
            return None
        return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *map(self.split, seeds))


def draw(source: TaskSource, key: PRNGKeyArray, split: Any) -> Task:
    return source(key) if split is None else source(key, split)


@dataclass(frozen=True)
class Outcome:
    """What was learned, for an experiment's own figures."""

    priors: Prior
    """One per seed, along a leading axis."""
    test_tasks: Task
    """The held-out tasks of each seed, likewise."""
    selected: tuple[str, ...]

    @property
    def first(self) -> Prior:
        """The prior of the first seed."""
        return jax.tree.map(lambda x: x[0], self.priors)


CHECKPOINT_SECONDS = 10.0

Keys: TypeAlias = Key[Array, " seeds"]


def meta_learn(
    setup: Setup, folder: RunFolder, *, seed: int, console: Console | None = None, trackers: tuple[Tracker, ...] = ()
) -> dict[str, Any]:
    """Train, evaluate on held-out tasks and return what goes into `result.json`."""
    started = time.monotonic()
    seeds = range(seed, seed + folder.request.seeds)
    keys, splits = jax.vmap(jax.random.key)(jnp.asarray(seeds)), setup.splits(seeds)
    state = over_seeds(lambda key: setup.learner.init(setup.init(jax.random.fold_in(key, 0))))(keys)
    step, state = from_first(checkpoint.restore(folder.checkpoints, state) or (0, state))
    step = int(step)
    folder.rewind_log(step)
    earlier = read_metrics(folder.path)
    seconds_before = earlier[-1]["seconds"] if earlier else 0.0
    state = _train(setup, folder, keys, splits, step, state, seconds_before, console, trackers)
    if console is not None:
        console.print("Adapting to held-out tasks …")
    result = _evaluate(setup, keys, splits, bring_home(state.prior))
    return {**result, "seconds": round(seconds_before + time.monotonic() - started, 1)}


def _train(
    setup: Setup,
    folder: RunFolder,
    keys: Keys,
    splits: Any,
    step: int,
    state: LearnerState,
    seconds_before: float,
    console: Console | None,
    trackers: tuple[Tracker, ...],
) -> LearnerState:
    advance = _advance(setup, keys, splits)
    started = saved = time.monotonic()
    with meter(setup.num_updates, step, console) as progress, _terminate_like_interrupt():
        try:
            while step < setup.num_updates:
                length = min(setup.chunk, setup.num_updates - step)
                with notice_loss():
                    new_state, metrics = advance(state, step, length)
                state, step = new_state, step + length
                row = _row(step, seconds_before + time.monotonic() - started, metrics, state.prior)
                folder.log(row)
                for tracker in trackers:
                    tracker.log(row)
                progress.advance(step, _note(row, state.prior))
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    checkpoint.save(folder.checkpoints, step, state)
                    saved = time.monotonic()
            checkpoint.save(folder.checkpoints, step, state)
        except (KeyboardInterrupt, LostProcessError):
            checkpoint.save(folder.checkpoints, step, state)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(f"No space left for {folder.path}: make room, then go on with --resume.") from error
    return state


def _advance(setup: Setup, keys: Keys, splits: Any) -> Callable[[LearnerState, int, int], tuple[LearnerState, Any]]:
    def chunk(
        one: tuple[LearnerState, PRNGKeyArray, Any], train_tasks: TaskSource, start: Array, length: int
    ) -> tuple[LearnerState, Any]:
        state, key, split = one

        def update(state: LearnerState, step: Array) -> tuple[LearnerState, Any]:
            task_key, update_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 1), step))
            tasks = share_out(draw(train_tasks, task_key, split))
            state, info = setup.learner.update(setup.loss_fn, state, tasks, key=update_key)
            return state, (info.query_loss, info.num_failed, jnp.mean(info.residual))

        steps = start + jnp.arange(length, dtype=jnp.int32)
        state, (loss, failed, residual) = jax.lax.scan(update, state, steps)
        metrics = {
            "query_loss": jnp.nanmean(loss),
            "num_failed": jnp.sum(failed),
            "residual": jnp.nanmean(residual),
        }
        return everywhere((state, metrics))

    compiled = over_seeds(chunk)
    return lambda state, step, length: compiled(
        (state, keys, splits), setup.train_tasks, jnp.asarray(step, jnp.int32), length
    )


def _row(step: int, seconds: float, measured: dict[str, Array], prior: Prior) -> dict[str, Any]:
    metrics = jax.device_get(measured)
    row: dict[str, Any] = {"step": step, "seconds": round(seconds, 3)}
    row |= {name: [finite(float(value)) for value in values] for name, values in metrics.items()}
    row["num_failed"] = [int(value) for value in metrics["num_failed"]]
    row["log_variance"] = [[finite(float(v)) for v in variances] for variances in np.asarray(prior.log_variance)]
    return row


def _note(row: dict[str, Any], prior: Prior) -> str:
    losses = [loss for loss in row["query_loss"] if loss is not None]
    loss = f"loss {np.mean(losses):.3g}" if losses else "loss none"
    failed = f", {sum(row['num_failed'])} tasks failed" if sum(row["num_failed"]) else ""
    return f"{loss}{failed}  σ² {sparkline(np.asarray(prior.log_variance).mean(axis=0).tolist())}"


def _evaluate(setup: Setup, keys: Keys, splits: Any, priors: Prior) -> dict[str, Any]:
    names = priors.modules.names
    typical = jax.tree.map(lambda x: jnp.mean(x, axis=0), priors)
    chosen = select(typical, setup.rule)
    subsets: dict[str, tuple[str, ...]] = {"all": names, "selected": chosen.names, **{name: (name,) for name in names}}
    subsets |= {label: tuple(members) for label, members in setup.subsets.items()}
    test_keys = jax.vmap(lambda key: jax.random.fold_in(key, 2))(keys)
    steps = _grid(setup)
    curve_of, seeds = _curves(setup, steps), (priors, test_keys, splits)
    curves = {
        members: np.asarray(curve_of(seeds, jnp.asarray([name in members for name in names]), setup.test_tasks))
        for members in dict.fromkeys(subsets.values())
    }
    scored = {label: curves[members] for label, members in subsets.items()}
    place = steps.index(setup.adapt_steps)
    at = {label: summarise(scores[..., place]) for label, scores in scored.items()}
    variances = np.exp(np.asarray(priors.log_variance, dtype=np.float64))
    result: dict[str, Any] = {
        "metric": {"name": setup.metric_name, "lower_is_better": setup.lower_is_better},
        "modules": [
            {
                "name": name,
                "size": priors.modules.sizes[index],
                "variance": finite(float(np.exp(np.log(variances[:, index]).mean()))),
                "variances": [finite(v) for v in variances[:, index]],
                "selected": bool(chosen.mask[index]),
            }
            for index, name in enumerate(names)
        ],
        "fraction": chosen.fraction,
        "test": {
            "before": summarise(scored["all"][..., 0]),
            "all": at["all"],
            "selected": at["selected"],
            "only": {name: at[name] for name in names},
            "subsets": {label: at[label] for label in setup.subsets},
        },
        "curves": _curves_as_json(scored, steps, setup.learner.num_steps),
    }
    if setup.extras is None:
        return result
    tasks = over_seeds(lambda one, source: draw(source, jax.random.split(one[0])[0], one[1]))(
        (test_keys, splits), setup.test_tasks
    )
    return result | setup.extras(Outcome(priors, tasks, chosen.names))


def _grid(setup: Setup) -> list[int]:
    """The steps that curves are drawn at: some sixty, evenly spaced on a log scale, and those that matter."""
    last = setup.curve_steps or 10 * setup.adapt_steps
    spaced = np.geomspace(1, last, 60).astype(int).tolist()
    return sorted({0, setup.adapt_steps, min(setup.learner.num_steps, last), *spaced})


def _curves(setup: Setup, steps: list[int]) -> Callable[..., Array]:
    """Scores against steps when the modules in a mask adapt: compiled once for all masks.

    A module of variance zero stays where it is, which is what leaving it out of `trainable` would do; but the names
    there are part of the program, and every set of them would be compiled anew.
    """
    solver = setup.solver or setup.learner.solver

    def one_seed(one: tuple[Prior, PRNGKeyArray, Any], mask: Array, test_tasks: TaskSource) -> Array:
        prior, key, split = one
        task_key, adapt_key = jax.random.split(key)
        frozen = jnp.where(mask, prior.log_variance, -jnp.inf)
        return adaptation_curve(
            setup.loss_fn,
            eqx.tree_at(lambda prior: prior.log_variance, prior, frozen),
            draw(test_tasks, task_key, split),
            solver,
            num_steps=steps[-1],
            key=adapt_key,
            sample=setup.learner.sample,
            metric_fn=setup.metric_fn,
            chunk_size=setup.test_chunk,
            steps=steps,
        )

    return over_seeds(one_seed)


def _curves_as_json(scored: dict[str, np.ndarray], steps: list[int], horizon: int) -> dict[str, Any]:
    """Scores against steps; `horizon` is how many steps meta-training looked ahead."""
    series = {}
    for label, scores in scored.items():
        by_seed = scores.mean(axis=1)
        values = by_seed if len(by_seed) > 1 else scores[0]
        series[label] = {
            "mean": [finite(float(v)) for v in by_seed.mean(axis=0)],
            "ci95": [finite(half_width(column)) for column in values.T],
        }
    return {"steps": steps, "horizon": horizon, "series": series}


class _terminate_like_interrupt:
    """While inside, SIGTERM ends a run as Ctrl-C does: with a checkpoint."""

    def __enter__(self) -> None:
        def interrupt(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        try:
            self._before = signal.signal(signal.SIGTERM, interrupt)
        except ValueError:  # Signals can be handled in the main thread only.
            self._before = None

    def __exit__(self, *exception: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
