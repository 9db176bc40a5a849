"""Figures that an experiment itself asks for."""

import math
from typing import Any

from matplotlib.figure import Figure

from .axes import (
    folded,
    log_scale,
    short_name,
    within_bounds,
)
from .numbers import clean, known, number, numbers
from .style import (
    BLUE,
    CYCLE,
    INK,
    VERMILLION,
    new_figure,
    plain_axis,
    style,
)

_SERIES = (BLUE, VERMILLION, *CYCLE[1:], INK)


@style()
def extra(description: dict[str, Any]) -> Figure | None:
    """A figure that the experiment itself asks for: lines or points with optional bands, and marked points."""
    drawn = [series for series in description["series"] if known(series["x"]) and known(series["y"])]
    marks = [m for m in description.get("marks") or () if not math.isnan(number(m.get("x")) + number(m.get("y")))]
    if not drawn and not marks:
        return None
    figure = new_figure(3.0)
    axes = figure.subplots()
    for index, series in enumerate(drawn):
        colour = _SERIES[index % len(_SERIES)]
        xs, ys = numbers(series["x"]), numbers(series["y"])
        look = {"points": {"marker": "o", "linestyle": "", "markersize": 3}, "dashed": {"linestyle": "--"}}
        axes.plot(
            xs,
            ys,
            color=colour,
            label=short_name(series.get("label") or "", 44),
            **look.get(series.get("style") or "", {}),
        )
        if series.get("low") and series.get("high"):
            axes.fill_between(
                xs, numbers(series["low"]), numbers(series["high"]), color=colour, alpha=0.15, linewidth=0
            )
    for which in ("x", "y"):
        drawn_too = ("y", "low", "high") if which == "y" else ("x",)
        values = [v for s in drawn for key in drawn_too for v in known(s.get(key))] + [number(m[which]) for m in marks]
        if description.get(f"{which}_log") and any(value > 0 for value in values):
            log_scale(axes, which, [value for value in values if value > 0])
        else:
            plain_axis(axes, which)
        within_bounds(axes, which, description.get(f"{which}_label") or "", values)
    for mark in marks:
        axes.plot(number(mark["x"]), number(mark["y"]), "D", color=INK, markersize=4.5)
        axes.annotate(
            short_name(mark.get("label") or ""), (number(mark["x"]), number(mark["y"])), (5, 5),
            textcoords="offset points", fontsize=7.5,
        )  # fmt: skip
    axes.set(xlabel=clean(description.get("x_label") or ""), ylabel=folded(description.get("y_label") or ""))
    if description.get("equal"):
        axes.set_aspect("equal", adjustable="datalim")
    if any(series.get("label") for series in drawn):
        figure.legend(loc="outside lower center", ncols=2)
    return figure
