"""A run's training: pure functions from its metrics to a `Figure`, or `None`."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .axes import (
    scale,
    short_name,
)
from .numbers import known, log_variances, mean
from .style import (
    BLUE,
    module_looks,
    new_figure,
    plain_axis,
    style,
)


@style()
def training_loss(rows: Sequence[dict[str, Any]]) -> Figure | None:
    """Query loss against updates: the mean over seeds and their range."""
    rows = thin([row for row in rows if known(row.get("query_loss"))], 400)
    if not rows:
        return None
    figure = new_figure(2.7)
    axes = figure.subplots()
    steps = [row["step"] for row in rows]
    values = [mean(row["query_loss"]) for row in rows]
    lows, highs = ([pick(known(row["query_loss"])) for row in rows] for pick in (min, max))
    scale(axes, "y", [*lows, *highs])
    if lows != highs:
        axes.fill_between(steps, lows, highs, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(steps, values, color=BLUE, marker="o" if len(steps) == 1 else "")
    axes.set(xlabel="updates", ylabel="query loss")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    plain_axis(axes, "x")
    return figure


@style()
def training_variances(rows: Sequence[dict[str, Any]], result: dict[str, Any]) -> Figure | None:
    """Logarithm of each module's variance against updates, averaged over seeds."""
    modules = result.get("modules") or []
    rows = [row for row in rows if any(known(seed) for seed in row.get("log_variance") or ())]
    if not rows or not modules:
        return None
    # A hundred lines with hundreds of points each would make a page of megabytes.
    rows = thin(rows, max(40, min(400, 6000 // len(modules))))
    names = [module["name"] for module in modules]
    selected = [bool(module.get("selected")) for module in modules]
    looks = module_looks(names, selected)
    few = len(set(looks.values())) == len(names)
    figure = new_figure(2.6 + 0.16 * math.ceil(len(names) / 2) if few else 2.9)
    axes = figure.subplots()
    steps = [row["step"] for row in rows]
    averages = [log_variances(row, len(names)) for row in rows]
    legend: dict[str, Any] = {}
    for index in range(len(names)):
        [line] = axes.plot(
            steps,
            [average[index] for average in averages],
            color=looks[names[index]][0],
            linestyle=looks[names[index]][1],
            linewidth=(1.9 if selected[index] else 1.1) if few else 0.8,
            alpha=1.0 if few or selected[index] else 0.5,
            marker="o" if len(steps) == 1 else "",
            zorder=3 if selected[index] else 2,
        )
        label = short_name(names[index]) + (" (selected)" if selected[index] else "") if few else ""
        legend[label or ("selected modules" if selected[index] else "shared modules")] = line
    axes.set(xlabel="updates", ylabel="log σ²")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    plain_axis(axes, "x")
    plain_axis(axes, "y")
    figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=2)
    return figure


def thin(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most about `most` of the rows, evenly spaced, the last one among them."""
    stride = max(1, math.ceil(len(rows) / most))
    return list(rows[::-1][::stride][::-1])
