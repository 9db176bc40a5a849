"""The numbers behind the figures as CSV text, at full precision."""

import csv
import io
import itertools
import re
from collections.abc import Iterable
from typing import Any

from .goals import goal_table
from .load import LoadedRun
from .numbers import known


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """CSV with a header in its first row; null becomes an empty cell."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def run_tables(run: LoadedRun) -> dict[str, str]:
    """All tables of a run by file name, without those that would be empty."""
    result = run.result
    tables = {
        "scores": scores(result),
        "modules": modules(result),
        "curves": curves(result),
        "conditions": conditions([run]),
        "training": training(run),
        "variances": variances(run),
        "measures": measures([run]),
        **dict(zip(extra_names(result), map(extra_series, result.get("figures") or ()), strict=True)),
    }
    return {f"{name}.csv": csv_text(rows) for name, rows in tables.items() if len(rows) > 1}


def scores(result: dict[str, Any]) -> list[list[Any]]:
    """Held-out score of each adapted set of modules."""
    test = result.get("test") or {}
    listed = [(kind, kind, test[kind]) for kind in ("before", "all", "selected") if test.get(kind)]
    for kind in ("also", "subsets", "only"):
        listed += [(kind, name, score) for name, score in (test.get(kind) or {}).items()]
    seeds = max((len(score.get("values") or ()) for _, _, score in listed), default=0)
    header = ["kind", "adapted", "mean", "ci95", "over", *(f"seed {index}" for index in range(seeds))]
    return [header] + [
        [kind, name, score["mean"], score.get("ci95"), score.get("over"), *_padded(score.get("values"), seeds)]
        for kind, name, score in listed
    ]


def modules(result: dict[str, Any]) -> list[list[Any]]:
    """Size and variance of each module, and whether it was selected."""
    listed = result.get("modules") or []
    seeds = max((len(module.get("variances") or ()) for module in listed), default=0)
    header = ["module", "size", "selected", "variance", *(f"variance seed {index}" for index in range(seeds))]
    return [header] + [
        [
            module["name"],
            module.get("size"),
            str(bool(module.get("selected"))).lower(),
            module.get("variance"),
            *_padded(module.get("variances"), seeds),
        ]
        for module in listed
    ]


def curves(result: dict[str, Any]) -> list[list[Any]]:
    """Score against steps of adaptation."""
    found = result.get("curves") or {"steps": [], "series": {}}
    columns: dict[str, list[Any]] = {"steps": found["steps"]}
    for label, series in found["series"].items():
        columns[f"{label} mean"] = series["mean"]
        columns[f"{label} ci95"] = series.get("ci95") or [None] * len(found["steps"])
    return [list(columns), *(list(row) for row in zip(*columns.values(), strict=True))]


def conditions(runs: list[LoadedRun]) -> list[list[Any]]:
    """Held-out scores in each of a run's conditions."""
    listed = [
        (run.name, condition["num_alphabets"], condition["num_instances"], adapted, score)
        for run in runs
        for condition in run.result.get("conditions") or ()
        for adapted, score in condition["test"].items()
    ]
    seeds = max((len(score.get("values") or ()) for *_, score in listed), default=0)
    header = ["run", "num_alphabets", "num_instances", "adapted", "mean", "ci95", "over"]
    return [[*header, *(f"seed {index}" for index in range(seeds))]] + [
        [*about, score["mean"], score.get("ci95"), score.get("over"), *_padded(score.get("values"), seeds)]
        for *about, score in listed
    ]


def training(run: LoadedRun) -> list[list[Any]]:
    """Loss and failed tasks of each seed against updates."""
    rows = run.metrics
    seeds = max((len(row.get("query_loss") or ()) for row in rows), default=0)
    kinds = ("query_loss", "num_failed")
    header = ["step", "seconds", *(f"{kind} {_lane(run, index)}" for kind in kinds for index in range(seeds))]
    return [header] + [
        [row["step"], row.get("seconds"), *(value for kind in kinds for value in _padded(row.get(kind), seeds))]
        for row in rows
    ]


def variances(run: LoadedRun) -> list[list[Any]]:
    """Log variance of each module and seed against updates."""
    names = [module["name"] for module in run.result.get("modules") or ()]
    rows = [row for row in run.metrics if any(known(seed) for seed in row.get("log_variance") or ())]
    seeds = max((len(row["log_variance"]) for row in rows), default=0)
    header = ["step", *(f"{name} {_lane(run, seed)}" for name in names for seed in range(seeds))]
    return [header] + [
        [
            row["step"],
            *(_at(_at(row["log_variance"], seed), index) for index in range(len(names)) for seed in range(seeds)),
        ]
        for row in rows
    ]


def measures(runs: list[LoadedRun]) -> list[list[Any]]:
    """What voices were judged by, of each test speaker."""
    listed = [
        (run.name, measure, method, score)
        for run in runs
        for measure, methods in run.measures.items()
        for method, score in methods.items()
    ]
    most = max((len(score.get("values") or ()) for *_, score in listed), default=0)
    header = ["run", "measure", "voice", "mean", "ci95", *(f"speaker {index}" for index in range(most))]
    return [header] + [
        [run, measure, method, score["mean"], score.get("ci95"), *_padded(score.get("values"), most)]
        for run, measure, method, score in listed
    ]


def extra_series(extra: dict[str, Any]) -> list[list[Any]]:
    """The points of a figure that the experiment asked for."""
    table: list[list[Any]] = [["series", "x", "y", "low", "high"]]
    for series in extra["series"]:
        count = len(series["x"])
        bounds = [series.get(key) or [None] * count for key in ("low", "high")]
        table += [[series.get("label"), *point] for point in zip(series["x"], series["y"], *bounds, strict=True)]
    return table


def comparison_tables(runs: list[LoadedRun]) -> dict[str, str]:
    """Scores and variances of several runs, one column or row per run."""
    tables = {
        "scores": run_scores(runs),
        "conditions": conditions(runs),
        "variances": run_variances(runs),
        "measures": measures(runs),
        "goals": [["seed", "goal", "verdict", "measured"], *goal_table(runs)],
    }
    return {f"{name}.csv": csv_text(rows) for name, rows in tables.items() if len(rows) > 1}


def run_scores(runs: list[LoadedRun]) -> list[list[Any]]:
    header = ["run", "experiment", "algorithm", "preset", "seeds", "metric", "adapted", "mean", "ci95", "over"]
    return [header] + [
        [
            *(run.name, run.experiment, run.algorithm, run.config.get("preset"), run.seeds),
            *((run.result.get("metric") or {}).get("name"), name, score["mean"], score.get("ci95"), score.get("over")),
        ]
        for run in runs
        for name, score in (run.result.get("test") or {}).items()
        if name in ("before", "all", "selected") and score
    ]


def run_variances(runs: list[LoadedRun]) -> list[list[Any]]:
    names = list(dict.fromkeys(module["name"] for run in runs for module in run.result.get("modules") or ()))
    by_run = [{m["name"]: m.get("variance") for m in run.result.get("modules") or ()} for run in runs]
    return [["module", *(run.name for run in runs)]] + [
        [name, *(found.get(name) for found in by_run)] for name in names
    ]


def slug(name: str) -> str:
    """A file name made from any name.

    >>> slug("../Error by depth")
    'error-by-depth'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "figure"


def extra_names(result: dict[str, Any]) -> list[str]:
    """File names for the figures that the experiment asks for: no two alike, none that another figure or table has."""
    taken = {"scores", "modules", "curves", "training", "variances", "adaptation", "training-variances", "examples"}
    taken |= {"measures", "steps", "similarity", "spectrograms", "conditions"}
    names = []
    for extra in result.get("figures") or ():
        base = slug(extra["name"])
        tried = (base if index == 1 else f"{base}-{index}" for index in itertools.count(1))
        names.append(next(name for name in tried if name not in taken))
        taken.add(names[-1])
    return names


def _lane(run: LoadedRun, index: int) -> str:
    """Which of the trainings that went side by side this is: all seeds of a condition, then those of the next."""
    found = run.result.get("conditions")
    if not found or index >= len(found) * run.seeds:
        return f"seed {index}"
    condition = found[index // run.seeds]
    return f"T={condition['num_alphabets']} K={condition['num_instances']} seed {index % run.seeds}"


def _padded(values: list[Any] | None, count: int) -> list[Any]:
    return [*(values or ()), *[None] * (count - len(values or ()))]


def _at(values: list[Any] | None, index: int) -> Any:
    return values[index] if values is not None and index < len(values) else None
