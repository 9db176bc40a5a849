"""Runs of many conditions: scores against the numbers that tell the conditions apart, for one run or several."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from ..runs.names import method_name
from .axes import fit_to, metric, short_name, within_bounds
from .comparison import look
from .load import LoadedRun
from .numbers import known, number, with_interval
from .paired import difference, same_tasks
from .sentences import condition_name
from .style import CYCLE, INK, SELECTED, new_figure, plain_axis, style

# Field -> its letter in the paper, what it counts, and what a figure along it is called.
_AXES = {
    "num_alphabets": ("T", "training alphabets", "Fewer and more alphabets"),
    "num_instances": ("K", "drawings of each character", "Fewer and more drawings"),
}
_ADAPTED = {"all": "all modules", "selected": "selected modules", "before": "nothing"}
_DODGE = 0.01
"""Neighbouring lines are drawn so much of the axis apart: their intervals would hide each other."""
_WIDE = 6
"""An axis has room for intervals up to so many times as wide as what the lines need."""

Plan = tuple[str, str, Figure | None, str]
_Line = tuple[str, tuple[str, str, str], dict[int, dict[str, Any]]]


# Settings in which runs of one method may differ: which conditions they have, and what belongs to each of them.
_CONDITIONS = (
    *("alphabets", "instances", "num_alphabets", "num_instances", "pairs_at_once"),
    *("inner_rates", "mean_rates", "variance_rates"),
)


@dataclass(frozen=True)
class _Method:
    """Runs that differ in their conditions only: a line in a figure, a column in a table."""

    runs: tuple[LoadedRun, ...]
    title: str = ""

    @property
    def label(self) -> str:
        return self.title or self.name

    @property
    def name(self) -> str:
        return " + ".join(run.name for run in self.runs)

    @property
    def conditions(self) -> list[dict[str, Any]]:
        return [condition for run in self.runs for condition in run.result["conditions"]]

    def goes_on_with(self, run: LoadedRun) -> bool:
        """Whether the run has other conditions of the same method."""
        ours = {condition_name(condition) for condition in self.conditions}
        theirs = {condition_name(condition) for condition in run.result["conditions"]}
        return not ours & theirs and _settings(self.runs[0]) == _settings(run)


def _settings(run: LoadedRun) -> tuple[Any, ...]:
    config = run.config.get("config") or {}
    return run.experiment, run.algorithm, run.seeds, {key: config[key] for key in config if key not in _CONDITIONS}


def _methods(runs: list[LoadedRun]) -> list[_Method]:
    found: list[_Method] = []
    for run in runs:
        if not run.result.get("conditions"):
            continue
        place = next((index for index, method in enumerate(found) if method.goes_on_with(run)), None)
        if place is None:
            found.append(_Method((run,)))
        else:
            found[place] = _Method((*found[place].runs, run))
    algorithms = [method.runs[0].algorithm for method in found]
    if not all(algorithms) or len({*algorithms}) < len(found):
        return found
    return [replace(method, title=method_name(name)) for method, name in zip(found, algorithms, strict=True)]


def plans(runs: list[LoadedRun], order: list[str]) -> list[Plan]:
    """Name, title, figure and caption of every slice: one number varies, the other stays."""
    methods = _methods(runs)
    return [_plan(methods, order, axis, fixed, value) for axis, fixed, value in _slices(methods)]


def condition_table(runs: list[LoadedRun]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: of one run, what is adapted; of several, a column for each method, all modules adapted.

    Of two methods with the same held-out tasks the difference has a column too.
    """
    if len(runs) == 1:
        found = runs[0].result["conditions"]
        adapted = list(dict.fromkeys(label for condition in found for label in condition["test"]))
        header = ["Condition", *(_adapted(label).capitalize() for label in adapted), "Selected"]
        return header, [
            [
                condition_name(condition),
                *(with_interval(condition["test"].get(label)) for label in adapted),
                ", ".join(condition.get("selected") or ()) or "–",
            ]
            for condition in found
        ]
    methods = _methods(runs)
    scores = [{condition_name(c): c["test"].get("all") for c in method.conditions} for method in methods]
    names = list(dict.fromkeys(name for method in scores for name in method))
    paired = len(methods) == 2 and _paired(*methods)
    compared = [f"{methods[0].name} − {methods[1].name}, seed by seed"] if paired else []
    return ["Condition", *(method.name for method in methods), *compared], [
        [
            name,
            *(with_interval(method.get(name)) for method in scores),
            *([with_interval(difference(*(method.get(name) for method in scores)))] if paired else []),
        ]
        for name in names
    ]


def _paired(first: _Method, second: _Method) -> bool:
    """Whether both had the same held-out tasks, part by part."""
    return len(first.runs) == len(second.runs) and all(map(same_tasks, first.runs, second.runs))


def _slices(methods: list[_Method]) -> Iterable[tuple[str, str, int]]:
    """What varies, what does not, and its value, wherever there are two conditions or more."""
    conditions = [condition for method in methods for condition in method.conditions]
    for axis, fixed in (tuple(_AXES), tuple(_AXES)[::-1]):
        for value in sorted({condition[fixed] for condition in conditions}):
            if len({condition[axis] for condition in conditions if condition[fixed] == value}) > 1:
                yield axis, fixed, value


def _plan(methods: list[_Method], order: list[str], axis: str, fixed: str, value: int) -> Plan:
    letter, what, title = _AXES[axis]
    other, held, _ = _AXES[fixed]
    alone = len(order) == 1
    lines = _of_one(methods[0], axis, fixed, value) if alone else _of_each(methods, order, axis, fixed, value)
    shown = "" if alone else " with all modules adapted"
    caption = (
        f"Score on held-out tasks{shown}, with 95 % intervals, against the number of {what} {letter}; "
        f"{other}, the number of {held}, is {value}."
    )
    figure = _figure(lines, f"{what} {letter}", metric(methods[0].runs[0].result))
    return f"slice-{other.lower()}-{value}", f"{title}: {other} = {value}", figure, caption


def _of_one(method: _Method, axis: str, fixed: str, value: int) -> list[_Line]:
    found = [condition for condition in method.conditions if condition[fixed] == value]
    labels = list(dict.fromkeys(label for c in found for label in c["test"] if label != "before"))
    looks = {"all": (INK, "-", "o"), "selected": (SELECTED, "--", "D")}
    others = iter(CYCLE * len(labels))
    return [
        (
            _adapted(label),
            looks.get(label) or (next(others), "-.", "s"),
            {condition[axis]: condition["test"][label] for condition in found if label in condition["test"]},
        )
        for label in labels
    ]


def _of_each(methods: list[_Method], order: list[str], axis: str, fixed: str, value: int) -> list[_Line]:
    return [
        (
            short_name(method.label),
            look(order.index(method.runs[0].name)),
            {c[axis]: c["test"]["all"] for c in method.conditions if c[fixed] == value and "all" in c["test"]},
        )
        for method in methods
    ]


@style()
def _figure(lines: list[_Line], x_label: str, y_label: str) -> Figure | None:
    places = sorted({place for _, _, scores in lines for place in scores})
    values = [value for _, _, scores in lines for value in known(score["mean"] for score in scores.values())]
    if not values:
        return None
    figure = new_figure(2.7 + 0.16 * -(-len(lines) // 2))
    axes = figure.subplots()
    step = _DODGE * (places[-1] - places[0])
    for index, (label, looks, scores) in enumerate(lines):
        _draw(axes, label, looks, scores, step * (index - (len(lines) - 1) / 2))
    axes.xaxis.set_major_locator(FixedLocator([float(place) for place in places]))
    for which in ("x", "y"):
        plain_axis(axes, which)
    fit_to(axes, [*values, *_ends(lines, values)])
    within_bounds(axes, "y", y_label, values)
    axes.set(xlabel=x_label, ylabel=y_label)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _ends(lines: list[_Line], values: list[float]) -> list[float]:
    """Of all intervals, unless they would press the lines together: those of two seeds do."""
    scores = [score for _, _, found in lines for score in found.values()]
    widths = [(number(score["mean"]), number(score.get("ci95"))) for score in scores]
    ends = known(end for middle, width in widths for end in (middle - width, middle + width))
    return ends if ends and max(ends) - min(ends) <= _WIDE * (max(values) - min(values)) else []


def _draw(axes: Axes, label: str, looks: tuple[str, str, str], scores: dict[int, dict[str, Any]], shift: float) -> None:
    colour, dashes, marker = looks
    places = sorted(scores)
    means = [number(scores[place]["mean"]) for place in places]
    axes.plot([place + shift for place in places], means, dashes, marker=marker, color=colour, label=label)
    for place, middle in zip(places, means, strict=True):
        width = number(scores[place].get("ci95"))
        if known([middle]) and known([width]):
            ends = [middle - width, middle + width]
            axes.plot([place + shift] * 2, ends, color=colour, linewidth=2.2, alpha=0.45)


def _adapted(label: str) -> str:
    return _ADAPTED.get(label) or f"only {short_name(label)}"
