"""How held-out tasks fare while they are adapted to: functions from results to a `Figure`, or `None` without any."""

import math
from typing import Any

from matplotlib.figure import Figure

from .axes import (
    LABELS,
    adaptation_axes,
    band,
    fit_to,
    folded,
    metric,
    scale,
    short_name,
    within_bounds,
)
from .numbers import known, number, numbers
from .style import (
    BLUE,
    CYCLE,
    INK,
    MUTED,
    PAPER,
    SELECTED,
    module_looks,
    new_figure,
    plain_axis,
    style,
)


@style()
def adaptation(result: dict[str, Any]) -> Figure | None:
    """Score against steps of adaptation, far past the number of steps used in training, which is marked."""
    curves = result.get("curves")
    if not curves or not curves["steps"] or not curves["series"]:
        return None
    modules = result.get("modules") or []
    names = [module["name"] for module in modules]
    looks = module_looks(names, [bool(module.get("selected")) for module in modules])
    few = len(set(looks.values())) == len(names) > 1
    figure = new_figure(2.7 + 0.16 * math.ceil(len(curves["series"]) / 2) if few else 2.9)
    axes = figure.subplots()
    bold = {"all": INK, "selected": SELECTED}
    # The two that matter are drawn last, on top. A single module alone is the same as all.
    order = [label for label in curves["series"] if label not in bold and names != [label]]
    legend: dict[str, Any] = {}
    for label in [*order, *(label for label in bold if label in curves["series"])]:
        strong = label in bold
        colour, dashes = looks.get(label, (INK, "-."))
        colour = bold.get(label) or colour
        series = curves["series"][label]
        [line] = axes.plot(
            curves["steps"],
            numbers(series["mean"]),
            color=colour,
            linewidth=1.8 if strong else 1.0 if few else 0.6,
            alpha=1.0 if strong else 0.8 if few else 0.45,
            linestyle={"all": "-", "selected": "--"}.get(label, dashes),
        )
        if strong:
            band(axes, curves["steps"], series["mean"], series.get("ci95"), colour)
        if strong or few or label not in names:
            legend[LABELS.get(label) or f"{'only ' if label in names else ''}{short_name(label)}"] = line
        else:
            legend["one module alone"] = line
    values = [value for series in curves["series"].values() for value in known(series["mean"])]
    scale(axes, "y", values)
    fit_to(axes, values)
    within_bounds(axes, "y", metric(result), values)
    adaptation_axes(axes, curves["steps"][-1])
    horizon = number(curves.get("horizon"))
    if not math.isnan(horizon):
        axes.axvline(horizon, color=MUTED, linewidth=0.9, linestyle=":")
        axes.annotate(
            "training", (horizon, 1), (-3, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right", va="top", color=MUTED, fontsize=7.5,
        )  # fmt: skip
    axes.set_ylabel(folded(metric(result)))
    first = [LABELS[label] for label in bold if LABELS[label] in legend]
    shown = [*first, *(label for label in legend if label not in first)]
    figure.legend([legend[label] for label in shown], shown, loc="outside lower center", ncols=2)
    return figure


@style()
def examples(result: dict[str, Any], most: int = 6) -> Figure | None:
    """Held-out tasks: the truth, the points that were given, and what each adapted model predicts."""
    shown = (result.get("examples") or [])[:most]
    if not shown:
        return None
    columns = 2 if len(shown) > 1 else 1
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(0.5 + 1.45 * rows if columns == 2 else 2.6)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    labels = list(dict.fromkeys(label for example in shown for label in example.get("predictions") or ()))
    colours = {"all": BLUE, "selected": SELECTED}
    others = iter([*CYCLE[1:], MUTED] * (1 + len(labels)))
    colours |= {label: next(others) for label in labels if label not in colours}
    legend: dict[str, Any] = {}
    for axes, example in zip(grid, shown, strict=False):
        xs = numbers(example["x"])
        if example.get("truth"):
            legend["truth"] = axes.plot(xs, numbers(example["truth"]), color=MUTED, linewidth=2.6, alpha=0.55)[0]
        for label, values in (example.get("predictions") or {}).items():
            dashes = "--" if label == "selected" else ":" if label == "before" else "-"
            name = LABELS.get(label, short_name(label))
            legend[name] = axes.plot(xs, numbers(values), color=colours[label], linewidth=1.2, linestyle=dashes)[0]
        if example.get("support_x") and example.get("support_y"):
            given = axes.plot(
                numbers(example["support_x"]), numbers(example["support_y"]), "o", color=INK, markersize=3.6,
                markeredgecolor=PAPER, markeredgewidth=0.6, zorder=5,
            )  # fmt: skip
            legend["given points"] = given[0]
    for axes in grid:
        plain_axis(axes, "x")
        plain_axis(axes, "y")
    for place in range(len(shown), len(grid)):
        grid[place].set_visible(False)
        grid[place - columns].tick_params(labelbottom=True)  # It has no one below it to carry the labels.
    if legend:
        figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=3)
    return figure
