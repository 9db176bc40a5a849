"""Figures of several runs side by side."""

import math
from typing import Any

from matplotlib.figure import Figure

from .axes import adaptation_axes, band, fit_to, interval, metric, name_rows, scale, short_name, within_bounds
from .load import LoadedRun
from .module_figures import MAX_ROWS
from .numbers import known, number, numbers
from .style import BLUE, CYCLE, INK, VERMILLION, log_axis, new_figure, style

_COLOURS = (BLUE, VERMILLION, *CYCLE[1:], INK)
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP"


def look(index: int) -> tuple[str, str, str]:
    """Colour, dashes and marker of the run at `index`: told apart by more than colour."""
    return (
        _COLOURS[index % len(_COLOURS)],
        _DASHES[index % len(_DASHES)],
        _MARKERS[index % len(_MARKERS)],
    )


def by_metric(runs: list[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Runs that were scored alike: others share no axis."""
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        groups.setdefault(metric(run.result), []).append(run)
    return groups


@style()
def adaptation(runs: list[LoadedRun], order: list[str]) -> Figure | None:
    """Score of adapting all modules against steps, one curve per run, its own number of training steps marked."""
    drawn = [run for run in runs if known(_all(run).get("mean"))]
    if not drawn:
        return None
    figure = new_figure(2.7 + 0.16 * math.ceil(len(drawn) / 2))
    axes = figure.subplots()
    for run in drawn:
        colour, dashes, marker = look(order.index(run.name))
        curves, series = run.result["curves"], _all(run)
        axes.plot(curves["steps"], numbers(series["mean"]), dashes, color=colour, label=short_name(run.label))
        band(axes, curves["steps"], series["mean"], series.get("ci95"), colour)
        if curves.get("horizon") in curves["steps"]:
            at = curves["steps"].index(curves["horizon"])
            axes.plot(curves["horizon"], number(series["mean"][at]), marker, color=colour, markersize=4.5)
    values = [value for run in drawn for value in known(_all(run)["mean"])]
    scale(axes, "y", values)
    fit_to(axes, values)
    within_bounds(axes, "y", metric(drawn[0].result), values)
    adaptation_axes(axes, max(run.result["curves"]["steps"][-1] for run in drawn))
    axes.set_ylabel(metric(drawn[0].result))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@style()
def scores(runs: list[LoadedRun], order: list[str]) -> Figure | None:
    """Held-out score per run: adapting all modules (filled) and only the selected ones (open)."""
    found = [(run, kind, (run.result.get("test") or {}).get(kind)) for run in runs for kind in ("all", "selected")]
    values = [value for _, _, score in found if score for value in known([score["mean"]])]
    if not values:
        return None
    figure = new_figure(0.8 + 0.3 * max(2, len(runs)))
    axes = figure.subplots()
    for run, kind, score in found:
        if score and known([score["mean"]]):
            place = runs.index(run) + (-0.16 if kind == "all" else 0.16)
            interval(
                axes, score, place, look(order.index(run.name))[0], "o" if kind == "all" else "D", filled=kind == "all"
            )
    name_rows(axes, [run.label for run in runs])
    scale(axes, "x", values)
    within_bounds(axes, "x", metric(runs[0].result), values)
    axes.set_xlabel(metric(runs[0].result))
    handles = [
        axes.plot([], [], marker, color=INK, markerfacecolor=INK if filled else "none")[0]
        for marker, filled in (("o", True), ("D", False))
    ]
    figure.legend(handles, ["all modules", "selected modules"], loc="outside lower center", ncols=2)
    return figure


@style()
def variances(runs: list[LoadedRun]) -> Figure | None:
    """Variance of each module, a mark per run, on a log scale."""
    names = list(dict.fromkeys(module["name"] for run in runs for module in run.result.get("modules") or ()))
    points = [(index, names.index(m["name"]), v) for index, run in enumerate(runs) for m, v in _positive(run)]
    if not points:
        return None
    many = len(names) > MAX_ROWS
    figure = new_figure((2.6 if many else 0.7 + 0.21 * max(2, len(names))) + 0.16 * math.ceil(len(runs) / 2))
    axes = figure.subplots()
    for index, run in enumerate(runs):
        colour, _, marker = look(index)
        own = [(place, value) for run_index, place, value in points if run_index == index]
        if own:
            places, values = (list(column) for column in zip(*own, strict=True))
            spots = (places, values) if many else (values, places)
            axes.plot(
                *spots, marker, color=colour, markersize=2 if many else 4.2, alpha=0.85, markeredgewidth=0,
                label=short_name(run.label),
            )  # fmt: skip
    values = [value for _, _, value in points]
    margin = max(1.5, (max(values) / min(values)) ** 0.05)
    log_axis(axes, "y" if many else "x", min(values) / margin, max(values) * margin)
    if many:
        axes.set(xlabel="module, in the network's order", ylabel="variance σ²")
    else:
        name_rows(axes, names)
        axes.set_xlabel("variance σ²")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def overlays(runs: list[LoadedRun]) -> list[dict[str, Any]]:
    """The experiments' own figures that ask to be laid over one another, one for each name that several runs share."""
    shared: dict[str, list[tuple[LoadedRun, dict[str, Any]]]] = {}
    for run in runs:
        for extra in run.result.get("figures") or ():
            if extra.get("overlay"):
                shared.setdefault(extra["name"], []).append((run, extra))
    return [_overlay(found) for found in shared.values() if len(found) > 1]


def _overlay(found: list[tuple[LoadedRun, dict[str, Any]]]) -> dict[str, Any]:
    series: list[dict[str, Any]] = []
    for run, extra in found:
        for one in extra["series"]:
            common = all(one in other["series"] for _, other in found)
            labelled = one if common else {**one, "label": f"{one.get('label') or ''} ({run.label})"}
            if labelled not in series:
                series.append(labelled)
    return {**found[0][1], "series": series}


def _all(run: LoadedRun) -> dict[str, Any]:
    curves = run.result.get("curves") or {"steps": [], "series": {}}
    return curves["series"].get("all") or {} if curves["steps"] else {}


def _positive(run: LoadedRun) -> list[tuple[dict[str, Any], float]]:
    modules = run.result.get("modules") or []
    return [(module, number(module.get("variance"))) for module in modules if number(module.get("variance")) > 0]
