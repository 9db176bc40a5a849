"""Several conditions of an experiment in one run: all of them and all seeds are trained side by side.

Conditions differ in numbers only, which are arrays in one compiled program, not in shapes.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from .._prior import Prior
from .._select import Selection, select
from .folder import RunFolder
from .meta import curves, curves_as_json, grid, metric_as_json, modules_as_json, typical
from .scores import score_sets
from .setup import Setup, stack
from .statistics import summarise
from .trackers import Tracker
from .training import Lanes, train


@dataclass(frozen=True)
class Condition:
    """What tells a condition from the others, in `result.json` and in the program."""

    about: Mapping[str, int]
    numbers: Mapping[str, Any]
    """They replace those of the same names in every seed's split, see `Setup.split`."""


def learn_conditions(
    setup: Setup,
    conditions: Sequence[Condition],
    folder: RunFolder,
    *,
    seed: int,
    reference: int = 0,
    long: bool = False,
    console: Console | None = None,
    trackers: tuple[Tracker, ...] = (),
) -> dict[str, Any]:
    """Train, evaluate on held-out tasks and return what goes into `result.json`.

    That is what any run has, about the condition at `reference`, and `conditions`. Held-out tasks are scored with all
    modules adapted, with the selected ones, and with each of the setup's `subsets`; with `long`, there are also curves
    of adapting all modules.
    """
    seeds = range(seed, seed + folder.request.seeds)
    lanes = lanes_of(setup, conditions, seeds)
    priors, seconds = train(setup, lanes, folder, console=console, trackers=trackers)
    trained = time.monotonic()
    result, before = _evaluate(setup, conditions, lanes, priors, reference, long, folder, console)
    return {**result, "seconds": round(seconds + before + time.monotonic() - trained, 1)}


def lanes_of(setup: Setup, conditions: Sequence[Condition], seeds: Sequence[int]) -> Lanes:
    """All seeds of the first condition, then all of the second, and so on. A seed has the same key in all of them."""
    if setup.split is None:
        raise ValueError("Conditions change numbers of `Setup.split`, which is missing.")
    pairs = list(itertools.product(conditions, seeds))
    keys = jax.vmap(jax.random.key)(jnp.asarray([seed for _, seed in pairs]))
    return Lanes(keys, stack([{**setup.split(seed), **condition.numbers} for condition, seed in pairs]))


def _evaluate(
    setup: Setup,
    conditions: Sequence[Condition],
    lanes: Lanes,
    priors: Prior,
    reference: int,
    long: bool,
    folder: RunFolder,
    console: Console | None,
) -> tuple[dict[str, Any], float]:
    """The result, and the seconds that went into it before an interruption."""
    names, num_seeds = priors.modules.names, len(lanes.keys) // len(conditions)
    parts = [slice(num_seeds * index, num_seeds * (index + 1)) for index in range(len(conditions))]
    learned = [jax.tree.map(lambda leaf, part=part: leaf[part], priors) for part in parts]
    chosen = [select(typical(prior), setup.rule) for prior in learned]
    sets = {"all": [names] * len(parts), "selected": [found.names for found in chosen]}
    sets |= {label: [tuple(members)] * len(parts) for label, members in setup.subsets.items()}

    def masks(members: Sequence[tuple[str, ...]]) -> np.ndarray:
        return np.repeat([[name in adapting for name in names] for adapting in members], num_seeds, axis=0)

    curve_of = curves(setup, [0, setup.adapt_steps], lanes, priors)
    adapting = {label: masks(members) for label, members in sets.items()}
    scored, before = score_sets(curve_of, adapting, priors, folder.scores, console)
    steps = grid(setup)
    drawn = curves(setup, steps, lanes, priors)(masks(sets["all"])) if long else None
    found = [
        _as_json(
            condition,
            prior,
            selection,
            {label: scores[part] for label, scores in scored.items()},
            {} if drawn is None else {"curves": curves_as_json({"all": drawn[part]}, steps, setup.learner.num_steps)},
        )
        for condition, prior, selection, part in zip(conditions, learned, chosen, parts, strict=True)
    ]
    shown = found[reference]
    scores, alone = shown["test"], [label for label, members in setup.subsets.items() if tuple(members) == (label,)]
    result = {
        "metric": metric_as_json(setup),
        "modules": modules_as_json(learned[reference], chosen[reference]),
        "fraction": chosen[reference].fraction,
        "test": {
            **{label: scores[label] for label in ("before", "all", "selected")},
            "only": {label: scores[label] for label in alone},
            "subsets": {label: scores[label] for label in setup.subsets if label not in alone},
        },
        **({"curves": shown["curves"]} if long else {}),
        "reference": dict(conditions[reference].about),
        "conditions": found,
    }
    return result, before


def _as_json(
    condition: Condition, priors: Prior, chosen: Selection, scored: dict[str, np.ndarray], more: dict[str, Any]
) -> dict[str, Any]:
    modules = modules_as_json(priors, chosen)
    return {
        **condition.about,
        "test": {
            "before": summarise(scored["all"][..., 0]),
            **{label: summarise(scores[..., 1]) for label, scores in scored.items()},
        },
        "selected": list(chosen.names),
        "variances": {module["name"]: module["variance"] for module in modules},
        **more,
    }
