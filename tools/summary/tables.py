"""Markdown tables of rows, as `results/tables.toml` declares them.

A table shows the modules of one run (what adapts, how far, and what comes of it), several runs, one a line, or
by how much one run is better than another, seed by seed: pairs of runs, one a line, or all conditions of two methods.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shrinx.runs.names import method_name
from shrinx.runs.statistics import half_width

from .errors import SummaryError
from .numbers import difference, gain_with_interval, percent, points, rate_with_interval, short, with_interval
from .paper import read_toml
from .rows import Row, measured_by
from .runs import Run

_RATES = ("accuracy", "digit-accuracy")
"""Metrics that are shares of right answers, and read better in percent."""

SHOWN = ("measured", "paper", "goal", "difference", "experiment", "setting")
"""What a column may show: the number, what it is compared with, how far it is from the paper's, whose it is; or the
setting of the run that `metric` names, where `condition` is what stands there for none."""


@dataclass(frozen=True)
class Column:
    """A column of a table of runs: a number of each."""

    title: str
    condition: str
    metric: str | None = None
    """The run's own score by default."""
    show: str = "measured"
    """One of `SHOWN`."""


@dataclass(frozen=True)
class Cells:
    """The numbers of all runs by run, condition and metric."""

    rows: Mapping[tuple[str, str, str], Row]

    @staticmethod
    def of(rows: Iterable[Row]) -> "Cells":
        return Cells({(row.run, row.condition, row.metric): row for row in rows})

    def find(self, table: str, run: Run, condition: str, metric: str) -> Row:
        if (run.name, condition, metric) not in self.rows:
            known = sorted({f"{c!r} ({m})" for name, c, m in self.rows if name == run.name})
            raise SummaryError(
                f"results/tables.toml: table {table!r} asks for {condition!r} ({metric}), "
                f"which {run.name} has not measured; known: {', '.join(known)}."
            )
        return self.rows[run.name, condition, metric]


def render_all(path: Path, runs: Mapping[str, Run], rows: Iterable[Row]) -> dict[str, str]:
    """Every table that `path` declares, by name."""
    cells = Cells.of(rows)
    return {name: _render(name, declared, runs, cells) for name, declared in read_toml(path).items()}


def modules_table(name: str, run: Run, cells: Cells) -> str:
    """What adapts in one run: nothing, everything, the selected modules, each alone with those that move most first."""

    def score(condition: str) -> str:
        return _measured(cells.find(name, run, condition, run.metric))

    def share(condition: str) -> str:
        return percent(cells.find(name, run, condition, "share of parameters").mean)

    lines = [
        ("nothing", percent(0.0), "", score("before")),
        ("all modules", percent(1.0), "", score("all")),
        (f"**the selected: {_and(run.selected)}**", f"**{share('selected')}**", "", f"**{score('selected')}**"),
    ]
    for module in sorted(run.variances, key=run.variances.__getitem__, reverse=True):
        only = f"only {module}"
        lines.append((f"{module} alone", share(only), short(run.variances[module]), score(only)))
    return _markdown(("what adapts", "share of parameters", "learned variance", run.metric), lines)


def runs_table(name: str, runs: Sequence[Run], columns: Sequence[Column], cells: Cells) -> str:
    """Several runs, one a line."""

    def cell(run: Run, column: Column) -> str:
        if column.show == "setting":
            setting = run.settings.get(column.metric or "")
            return column.condition if setting is None else str(setting)
        found = cells.find(name, run, column.condition, column.metric or run.metric)
        match column.show:
            case "paper":
                return rate_with_interval(found.paper, None) if found.metric in _RATES else short(found.paper)
            case "goal":
                return found.goal or ""
            case "difference":
                return (points if found.metric in _RATES else difference)(found.mean, found.paper)
            case "experiment":
                return run.experiment
        return _measured(found)

    lines = [(method_name(run.algorithm), *(cell(run, column) for column in columns)) for run in runs]
    return _markdown(("method", *(column.title for column in columns)), lines)


def gains_table(name: str, pairs: Sequence[tuple[Run, Run]], columns: Sequence[Column]) -> str:
    """By how much the first run of each pair is better than the second: the mean over seeds of differences, and its
    interval, in points of a share of right answers. Seeds have test tasks of their own, the same in both runs, which
    makes intervals of scores wide and those of differences narrow."""

    lines = [
        (
            f"{method_name(ours.algorithm)} over {method_name(theirs.algorithm)}",
            *(_gain(name, ours, theirs, column.condition) for column in columns),
        )
        for ours, theirs in pairs
    ]
    return _markdown(("gain in points", *(column.title for column in columns)), lines)


def grid_table(name: str, pairs: Sequence[tuple[Run, Run]], down: Sequence[str], across: Sequence[str]) -> str:
    """The same in all conditions of two methods, a line for each of `down`, a column for each of `across`.

    Every pair of runs has some of the conditions.
    """

    def cell(line: str, column: str) -> str:
        condition = f"{column} {line}, all".replace(" = ", "=")
        (ours, theirs), *more = [pair for pair in pairs if condition in _known(pair[0])] or pairs[:1]
        if more:
            raise SummaryError(f"results/tables.toml: table {name!r} has {condition!r} in several pairs of runs.")
        return _gain(name, ours, theirs, condition)

    title = "{} over {}, points".format(*(method_name(run.algorithm) for run in pairs[0]))
    return _markdown((title, *across), [(line, *(cell(line, column) for column in across)) for line in down])


def _gain(table: str, ours: Run, theirs: Run, condition: str) -> str:
    first, second = (_by_seed(table, run, condition) for run in (ours, theirs))
    if len(first) != len(second):
        raise SummaryError(f"results/tables.toml: table {table!r} pairs {ours.name} and {theirs.name} of other seeds.")
    gains = [a - b for a, b in zip(first, second, strict=True)]
    return gain_with_interval(math.fsum(gains) / len(gains), half_width(gains))


def _known(run: Run) -> dict[str, tuple[float, ...]]:
    return {asked: score.by_seed for asked, metric, score in measured_by(run) if metric in _RATES and score.by_seed}


def _by_seed(table: str, run: Run, condition: str) -> tuple[float, ...]:
    known = _known(run)
    if condition not in known:
        raise SummaryError(
            f"results/tables.toml: table {table!r} asks for {condition!r} seed by seed, which {run.name} has not; "
            f"known: {', '.join(known) or 'none'}."
        )
    return known[condition]


def _render(name: str, declared: dict[str, Any], runs: Mapping[str, Run], cells: Cells) -> str:
    def run(folder: str) -> Run:
        if folder not in runs:
            raise SummaryError(f"results/tables.toml: table {name!r} names results/{folder}, which is not there.")
        return runs[folder]

    match declared:
        case {"modules": str(folder), **rest} if not rest:
            return modules_table(name, run(folder), cells)
        case {"runs": list(folders), "columns": list(columns), **rest} if not rest:
            return runs_table(name, [run(folder) for folder in folders], [_column(name, c) for c in columns], cells)
        case {"pairs": list(pairs), "columns": list(columns), **rest} if not rest:
            both = [(run(ours), run(theirs)) for ours, theirs in pairs]
            return gains_table(name, both, [_column(name, c) for c in columns])
        case {"pairs": list(pairs), "down": list(down), "across": list(across), **rest} if not rest:
            return grid_table(name, [(run(ours), run(theirs)) for ours, theirs in pairs], down, across)
    raise SummaryError(
        f"results/tables.toml: table {name!r} must have `modules`, a run's folder, or `runs` and `columns`, or `pairs` "
        "of runs and `columns`, or `down` and `across`."
    )


def _column(table: str, declared: dict[str, Any]) -> Column:
    try:
        column = Column(**declared)
    except TypeError as error:
        raise SummaryError(f"results/tables.toml: table {table!r} has a column that is none: {error}.") from error
    if column.show not in SHOWN:
        raise SummaryError(
            f"results/tables.toml: table {table!r} has a column that shows {column.show!r}; known: {', '.join(SHOWN)}."
        )
    return column


def _measured(row: Row) -> str:
    return (rate_with_interval if row.metric in _RATES else with_interval)(row.mean, row.ci95)


def _markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "none"
