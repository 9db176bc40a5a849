"""The numbers of a run, one row each: what `results/summary.json` holds and tables show."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .errors import SummaryError
from .paper import Paper, Reference
from .runs import Run, Score, ratio


@dataclass(frozen=True)
class Row:
    """One measured number, and what is needed to measure it again."""

    run: str
    condition: str
    metric: str
    mean: float | None
    ci95: float | None
    paper: float | None
    goal: str | None
    experiment: str
    algorithm: str
    seeds: int
    command: str
    commit: str | None
    device: str
    date: str


def collect(runs: Iterable[Run], paper: Paper) -> list[Row]:
    """The rows of all runs. Raises `SummaryError` where the paper's table names a number that a run does not have."""
    runs = list(runs)
    rows = [
        _row(run, condition, metric, score, _reference(paper, run, condition, metric))
        for run in runs
        for condition, metric, score in measured(run, paper)
    ]
    _check_references(runs, rows, paper)
    return rows


_OF_RUN = ("experiment", "algorithm", "seeds", "command", "commit", "device", "date")


def as_json(rows: Iterable[Row]) -> str:
    """What is true of a whole run, once for each, then the numbers, a line each: where one changes, a line does."""
    described = [asdict(row) for row in rows]
    runs = {row["run"]: {field: row[field] for field in _OF_RUN} for row in described}
    numbers = [{field: value for field, value in row.items() if field not in _OF_RUN} for row in described]
    about = ",\n".join(f"{_compact(name)}: {_compact(fields)}" for name, fields in runs.items())
    listed = ",\n".join(map(_compact, numbers))
    return f'{{"runs": {{\n{about}\n}},\n"numbers": [\n{listed}\n]}}\n'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def measured_by(run: Run) -> Iterator[tuple[str, str, Score]]:
    """Condition, metric and value of everything that held-out tasks have told about a run."""
    for condition, score in run.scores.items():
        yield condition, run.metric, score
    yield from _along_curves(run)
    yield from _in_conditions(run)
    yield from _judged(run)


def measured(run: Run, paper: Paper) -> Iterator[tuple[str, str, Score]]:
    """The same of everything about a run: its scores, its modules, its time."""
    yield from measured_by(run)
    # Without a prior on the modules there are no variances to choose some of them by.
    variances = run.variances if all(map(math.isfinite, run.variances.values())) else {}
    total = sum(run.sizes.values())
    for name in variances:
        yield f"only {name}", "share of parameters", Score(run.sizes[name] / total)
    if variances:
        yield "selected", "share of parameters", Score(sum(run.sizes[name] for name in run.selected) / total)
    for metric, values in (("variance", variances), ("rate", run.rates)):
        for name, value in values.items():
            yield f"only {name}", metric, Score(value)
        for groups in paper.groups if values else ():
            if groups.experiment == run.experiment:
                yield groups.name, f"{metric} ratio", Score(ratio(values, groups.above, groups.below))
    yield "run", "seconds", Score(run.seconds)


def _along_curves(run: Run) -> Iterator[tuple[str, str, Score]]:
    for label, curve in run.curves.items():
        if label in run.sizes:  # Of single modules the score itself is enough.
            continue
        at_horizon = [point for point in curve.points if point.step == curve.horizon]
        for name, point in (("at the horizon", at_horizon[0] if at_horizon else None), ("at its best", curve.best)):
            if point is not None:
                yield f"{label}, {name}", run.metric, Score(point.mean, point.ci95)
        yield f"{label}, at its best", "steps", Score(curve.best.step)
        # Speech adapts a hundred times as long as it is trained to.
        end = "at the last step" if run.stops or run.curve_steps else "ten times as long"
        yield f"{label}, {end}", run.metric, Score(curve.last.mean, curve.last.ci95)


def _in_conditions(run: Run) -> Iterator[tuple[str, str, Score]]:
    for condition in run.conditions.values():
        for adapted, score in condition.scores.items():
            yield f"{condition.name}, {adapted}", run.metric, score
        for name, value in condition.variances.items():
            yield f"{condition.name}, only {name}", "variance", Score(value)


def _judged(run: Run) -> Iterator[tuple[str, str, Score]]:
    for measure, scores in run.measures.items():
        for condition, score in scores.items():
            yield condition, measure, score
    for condition, step in run.stops.items():
        yield condition, "steps", Score(step)


def _row(run: Run, condition: str, metric: str, score: Score, reference: Reference | None) -> Row:
    return Row(
        experiment=run.experiment,
        algorithm=run.algorithm,
        condition=condition,
        metric=metric,
        mean=_finite(score.mean),
        ci95=_finite(score.ci95),
        seeds=run.seeds,
        paper=reference.paper if reference else None,
        goal=reference.goal if reference else None,
        run=run.name,
        command=run.command,
        commit=run.commit,
        device=run.device,
        date=run.date,
    )


def _about(reference: Reference, run: Run) -> bool:
    same = (run.experiment, run.preset) == (reference.experiment, reference.preset)
    return same and run.algorithm in reference.algorithms


def _reference(paper: Paper, run: Run, condition: str, metric: str) -> Reference | None:
    of_run = (reference for reference in paper.references if _about(reference, run))
    return next((found for found in of_run if (found.condition, found.metric) == (condition, metric)), None)


def _check_references(runs: list[Run], rows: list[Row], paper: Paper) -> None:
    known = {(row.run, row.condition, row.metric) for row in rows}
    for reference, run in itertools.product(paper.references, runs):
        if _about(reference, run) and (run.name, reference.condition, reference.metric) not in known:
            raise SummaryError(
                f"results/paper.toml speaks of the {reference.metric!r} of {reference.condition!r}, "
                f"which {run.name} has not measured; correct the entry."
            )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
