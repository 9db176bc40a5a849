"""What most experiments do: train several seeds side by side, adapt to held-out tasks, say what was learned."""

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
from .folder import RunFolder
from .parallel import over_seeds
from .progress import sparkline
from .stages import Advance, train_in_chunks
from .statistics import finite, half_width, summarise
from .trackers import Tracker

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


Keys: TypeAlias = Key[Array, " seeds"]


def meta_learn(
    setup: Setup, folder: RunFolder, *, seed: int, console: Console | None = None, trackers: tuple[Tracker, ...] = ()
) -> dict[str, Any]:
    """Train, evaluate on held-out tasks and return what goes into `result.json`."""
    seeds = range(seed, seed + folder.request.seeds)
    keys, splits = jax.vmap(jax.random.key)(jnp.asarray(seeds)), setup.splits(seeds)
    state = over_seeds(lambda key: setup.learner.init(setup.init(jax.random.fold_in(key, 0))))(keys)
    state, seconds = train_in_chunks(
        folder,
        state,
        _advance(setup, keys, splits),
        num_steps=setup.num_updates,
        chunk=setup.chunk,
        console=console,
        trackers=trackers,
    )
    trained = time.monotonic()
    if console is not None:
        console.print("Adapting to held-out tasks …")
    result = _evaluate(setup, keys, splits, state.prior)
    return {**result, "seconds": round(seconds + time.monotonic() - trained, 1)}


def _advance(setup: Setup, keys: Keys, splits: Any) -> Advance[LearnerState]:
    """Updates of all seeds in one compiled loop, and what to say about them."""

    def chunk(
        one: tuple[LearnerState, PRNGKeyArray, Any], train_tasks: TaskSource, start: Array, length: int
    ) -> tuple[LearnerState, Any]:
        state, key, split = one

        def update(state: LearnerState, step: Array) -> tuple[LearnerState, Any]:
            task_key, update_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 1), step))
            state, info = setup.learner.update(setup.loss_fn, state, draw(train_tasks, task_key, split), key=update_key)
            return state, (info.query_loss, info.num_failed, jnp.mean(info.residual))

        steps = start + jnp.arange(length, dtype=jnp.int32)
        state, (loss, failed, residual) = jax.lax.scan(update, state, steps)
        return state, {
            "query_loss": jnp.nanmean(loss),
            "num_failed": jnp.sum(failed),
            "residual": jnp.nanmean(residual),
        }

    compiled = over_seeds(chunk)

    def advance(state: LearnerState, step: int, length: int) -> tuple[LearnerState, dict[str, Any], str]:
        start = jnp.asarray(step, jnp.int32)
        state, metrics = compiled((state, keys, splits), setup.train_tasks, start, length)
        row = _row(metrics, state.prior)
        return state, row, _note(row, state.prior)

    return advance


def _row(metrics: dict[str, Array], prior: Prior) -> dict[str, Any]:
    row: dict[str, Any] = {name: [finite(float(value)) for value in values] for name, values in metrics.items()}
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
