"""Runs whose seeds had the same held-out tasks: their difference is better known than either score."""

import statistics
from typing import Any

from ..runs.statistics import half_width
from .load import LoadedRun
from .numbers import known

# The settings of all experiments that shape held-out tasks and how they are judged, besides the data.
_TASKS = (
    "seed",
    "num_test_tasks",
    *("num_support", "num_query", "num_test_query", "true_mean", "true_variance"),
    *("ways", "shots", "queries", "queries_at_once", "num_alphabets", "num_instances", "rotate"),
    *("held_out_support", "num_validation_speakers", "test_strings", "test_frames"),
)


def same_tasks(first: LoadedRun, second: LoadedRun) -> bool:
    """Whether both runs had the same held-out tasks, seed by seed: these are drawn from the seed, whoever learns."""
    ours, theirs = (
        (run.experiment, run.seeds, *((run.config.get("config") or {}).get(field) for field in _TASKS))
        for run in (first, second)
    )
    return ours == theirs


def difference(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """First minus second, of scores of the same seeds, with the interval of the differences.

    >>> score = difference({"values": [0.5, 0.75]}, {"values": [0.25, 0.5]})
    >>> score["mean"], score["ci95"]
    (0.25, 0.0)
    """
    ours, theirs = ((score or {}).get("values") or () for score in (first, second))
    if not ours or len(ours) != len(theirs) or len(known([*ours, *theirs])) < 2 * len(ours):
        return None
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {"mean": statistics.mean(differences), "ci95": half_width(differences)}
