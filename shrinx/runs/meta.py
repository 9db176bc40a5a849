"""What most experiments do: train several seeds side by side, adapt to held-out tasks, say what was learned."""

import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from rich.console import Console

from .._evaluate import adaptation_curve
from .._prior import Prior
from .._select import Selection, select
from .._types import LossFn
from .folder import RunFolder
from .parallel import over_seeds
from .scores import CurveFn, score_sets
from .setup import Outcome, Setup, TaskSource, draw
from .statistics import finite, half_width, summarise
from .trackers import Tracker
from .training import Lanes, train

__all__ = ["Outcome", "Setup", "TaskSource", "draw", "meta_learn"]


def meta_learn(
    setup: Setup, folder: RunFolder, *, seed: int, console: Console | None = None, trackers: tuple[Tracker, ...] = ()
) -> dict[str, Any]:
    """Train, evaluate on held-out tasks and return what goes into `result.json`."""
    seeds = range(seed, seed + folder.request.seeds)
    lanes = Lanes(jax.vmap(jax.random.key)(jnp.asarray(seeds)), setup.splits(seeds))
    priors, seconds = train(setup, lanes, folder, console=console, trackers=trackers)
    trained = time.monotonic()
    result, before = _evaluate(setup, lanes, priors, folder, console)
    return {**result, "seconds": round(seconds + before + time.monotonic() - trained, 1)}


def _evaluate(
    setup: Setup, lanes: Lanes, priors: Prior, folder: RunFolder, console: Console | None
) -> tuple[dict[str, Any], float]:
    """The result, and the seconds that went into it before an interruption."""
    names = priors.modules.names
    chosen = select(typical(priors), setup.rule)
    subsets: dict[str, tuple[str, ...]] = {"all": names, "selected": chosen.names, **{name: (name,) for name in names}}
    subsets |= {label: tuple(members) for label, members in setup.subsets.items()}
    steps = grid(setup)
    curve_of = curves(setup, steps, lanes, priors)
    # Sets that are the same are scored once, under the first of their labels.
    labels = {members: label for label, members in reversed(subsets.items())}
    masks = {
        label: np.tile([name in members for name in names], (len(lanes.keys), 1)) for members, label in labels.items()
    }
    drawn, before = score_sets(curve_of, masks, priors, folder.scores, console)
    scored = {label: drawn[labels[members]] for label, members in subsets.items()}
    place = steps.index(setup.adapt_steps)
    at = {label: summarise(scores[..., place]) for label, scores in scored.items()}
    result: dict[str, Any] = {
        "metric": metric_as_json(setup),
        "modules": modules_as_json(priors, chosen),
        "fraction": chosen.fraction,
        "test": {
            "before": summarise(scored["all"][..., 0]),
            "all": at["all"],
            "selected": at["selected"],
            "only": {name: at[name] for name in names},
            "subsets": {label: at[label] for label in setup.subsets},
            "also": {label: _score_by(metric_fn, setup, lanes, priors) for label, metric_fn in setup.also.items()},
        },
        "curves": curves_as_json(scored, steps, setup.learner.num_steps),
    }
    if setup.extras is None:
        return result, before
    tasks = over_seeds(lambda one, source: draw(source, jax.random.split(one[0])[0], one[1]))(
        (_test_keys(lanes), lanes.splits), setup.test_tasks
    )
    return result | setup.extras(Outcome(priors, tasks, chosen.names)), before


def _score_by(metric_fn: LossFn, setup: Setup, lanes: Lanes, priors: Prior) -> dict[str, Any]:
    """All modules adapted, another score than the setup's own."""
    curve_of = curves(replace(setup, metric_fn=metric_fn), [setup.adapt_steps], lanes, priors)
    return summarise(curve_of(np.ones(priors.log_variance.shape, bool))[..., 0])


def typical(priors: Prior) -> Prior:
    """The mean of several."""
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), priors)


def grid(setup: Setup) -> list[int]:
    """The steps that curves are drawn at: some sixty, evenly spaced on a log scale, and those that matter."""
    last = setup.curve_steps or 10 * setup.adapt_steps
    spaced = np.geomspace(1, last, 60).astype(int).tolist()
    return sorted({0, setup.adapt_steps, min(setup.learner.num_steps, last), *spaced})


def curves(setup: Setup, steps: list[int], lanes: Lanes, priors: Prior) -> CurveFn:
    """Compiled once for all masks. A module of variance zero stays where it is, which is what leaving it out of
    `trainable` would do; but the names there are part of the program, and every set of them would be compiled anew.
    """

    def one_lane(one: tuple[Prior, PRNGKeyArray, Any, Array], test_tasks: TaskSource) -> Array:
        prior, key, split, mask = one
        learner = setup.learner_for(split)
        task_key, adapt_key = jax.random.split(key)
        frozen = jnp.where(mask, prior.log_variance, -jnp.inf)
        return adaptation_curve(
            setup.loss_fn,
            eqx.tree_at(lambda prior: prior.log_variance, prior, frozen),
            draw(test_tasks, task_key, split),
            setup.solver_for(split),
            num_steps=steps[-1],
            key=adapt_key,
            sample=learner.sample,
            metric_fn=setup.metric_fn,
            chunk_size=setup.test_chunk,
            steps=steps,
        )

    compiled, test_keys = over_seeds(one_lane, at_once=setup.lanes_at_once), _test_keys(lanes)

    def curve_of(masks: np.ndarray) -> np.ndarray:
        return np.asarray(compiled((priors, test_keys, lanes.splits, jnp.asarray(masks)), setup.test_tasks))

    return curve_of


def _test_keys(lanes: Lanes) -> Array:
    return jax.vmap(lambda key: jax.random.fold_in(key, 2))(lanes.keys)


def metric_as_json(setup: Setup) -> dict[str, Any]:
    return {"name": setup.metric_name, "lower_is_better": setup.lower_is_better}


def modules_as_json(priors: Prior, chosen: Selection) -> list[dict[str, Any]]:
    """What was learned of each module: the variance of each seed and their geometric mean."""
    variances = np.exp(np.asarray(priors.log_variance, dtype=np.float64))
    return [
        {
            "name": name,
            "size": priors.modules.sizes[index],
            "variance": finite(float(np.exp(np.log(variances[:, index]).mean()))),
            "variances": [finite(v) for v in variances[:, index]],
            "selected": bool(chosen.mask[index]),
        }
        for index, name in enumerate(priors.modules.names)
    ]


def curves_as_json(scored: dict[str, np.ndarray], steps: list[int], horizon: int) -> dict[str, Any]:
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
