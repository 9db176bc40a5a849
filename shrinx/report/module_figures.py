"""What a run says of its modules: functions from results to a `Figure`, or `None` where there is nothing to draw."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .axes import (
    LABELS,
    interval,
    metric,
    name_rows,
    scale,
    short_name,
    within_bounds,
)
from .numbers import known, number
from .style import (
    BLUE,
    CYCLE,
    INK,
    MUTED,
    SELECTED,
    log_axis,
    new_figure,
    style,
)

MAX_ROWS = 30
"""With more modules than this a row each would be unreadable: they are drawn side by side, in order, without names."""


@style()
def variances(result: dict[str, Any]) -> Figure | None:
    """The variance of each module: bars on a log scale, a dot per seed, selected modules in another colour."""
    modules = result.get("modules") or []
    positive = [v for m in modules for v in known([m.get("variance"), *(m.get("variances") or ())]) if v > 0]
    if not positive:
        return None
    low = 10.0 ** math.floor(math.log10(min(positive)) - 0.2)
    high = 10.0 ** (math.log10(max(positive)) + 0.08 * math.log10(max(positive) / low))
    many = len(modules) > MAX_ROWS
    figure = new_figure(2.7 if many else 0.75 + 0.21 * max(2, len(modules)))
    axes = figure.subplots()
    places = list(range(1, len(modules) + 1)) if many else list(range(len(modules)))
    colours = [SELECTED if module.get("selected") else BLUE for module in modules]
    lengths = [max(0.0, number(module.get("variance")) - low) for module in modules]
    lengths = [0.0 if math.isnan(length) else length for length in lengths]
    (axes.bar if many else axes.barh)(
        places, lengths, 0.8 if many else 0.62, low, color=colours, alpha=0.75, linewidth=0
    )
    for place, module in zip(places, modules, strict=True):
        seeds = [value for value in known(module.get("variances")) if value > 0]
        if len(seeds) > 1:
            spots = ([place] * len(seeds), seeds) if many else (seeds, [place] * len(seeds))
            axes.plot(*spots, "o", color=INK, markersize=1.2 if many else 2.4, alpha=0.6, markeredgewidth=0)
        missing = _without_bar(module)
        if missing and not many:
            axes.text(low * (high / low) ** 0.01, place, missing, va="center", color=MUTED)
    log_axis(axes, "y" if many else "x", low, high)
    if many:
        axes.set(xlabel="module, in the network's order", ylabel="variance σ²", xlim=(0, len(modules) + 1))
        axes.grid(False, axis="x")
        _name_largest(axes, modules, places)
    else:
        name_rows(axes, [module["name"] for module in modules])
        axes.set_xlabel("variance σ²")
    chosen = {bool(module.get("selected")) for module in modules}
    if len(chosen) == 2:
        handles = [axes.scatter([], [], marker="s", color=colour, alpha=0.75) for colour in (SELECTED, BLUE)]
        figure.legend(handles, ["selected", "shared"], loc="outside lower center", ncols=2)
    return figure


@style()
def scores(result: dict[str, Any]) -> Figure | None:
    """Held-out score of adapting everything, the selection, other sets, and each module alone, with 95 % intervals."""
    test = result.get("test") or {}
    sets = {LABELS[key]: test[key] for key in ("before", "all", "selected") if test.get(key)}
    alone = test.get("only") or {}
    sets |= {name: score for name, score in (test.get("subsets") or {}).items() if name not in alone}
    values = [v for score in (*sets.values(), *alone.values()) for v in known([score["mean"]])]
    if not values:
        return None
    names = {module["name"] for module in result.get("modules") or () if module.get("selected")}
    if len(alone) > MAX_ROWS:
        figure = _scores_in_order(sets, alone, names)
        axis, which = figure.axes[0], "y"
    else:
        rows = [*sets.items(), *alone.items()]
        figure = new_figure(0.75 + 0.21 * max(2, len(rows)))
        axis, which = figure.subplots(), "x"
        for place, (label, score) in enumerate(rows):
            single = place >= len(sets)
            chosen = label in names if single else label == LABELS["selected"]
            colour = SELECTED if chosen else INK if not single else BLUE
            interval(axis, score, place, colour, "o" if single else "D")
        name_rows(axis, [f"only {label}" if label in alone else label for label, _ in rows])
        if sets and alone:
            axis.axhline(len(sets) - 0.5, color=MUTED, linewidth=0.6)
    scale(axis, which, values)
    within_bounds(axis, which, metric(result), values)
    axis.set(**{f"{which}label": metric(result)})
    return figure


def _without_bar(module: dict[str, Any]) -> str:
    variance = module.get("variance")
    return "no prior" if math.isnan(number(variance)) else "0, frozen" if number(variance) == 0 else ""


def _name_largest(axes: Axes, modules: list[dict[str, Any]], places: list[int]) -> None:
    """Write the name of the most variable module at its bar; the table has the others."""
    ranked = sorted(
        zip(modules, places, strict=True), key=lambda pair: -max(known([pair[0].get("variance")]), default=0.0)
    )
    module, place = ranked[0]
    left = place > len(modules) / 2
    axes.annotate(
        short_name(module["name"]), (place, number(module["variance"])), (-4 if left else 4, 2),
        textcoords="offset points", ha="right" if left else "left", fontsize=7.5,
    )  # fmt: skip


def _scores_in_order(sets: dict[str, Any], alone: dict[str, Any], selected: set[str]) -> Figure:
    figure = new_figure(3.0)
    axes = figure.subplots()
    for index, (name, score) in enumerate(alone.items(), start=1):
        colour = SELECTED if name in selected else BLUE
        middle, width = number(score["mean"]), number(score.get("ci95"))
        if not math.isnan(middle + width):
            axes.plot([index] * 2, [middle - width, middle + width], color=colour, linewidth=0.6, alpha=0.6)
        axes.plot(index, middle, "o", color=colour, markersize=2.2)
    looks = {LABELS["all"]: (INK, "-"), LABELS["selected"]: (SELECTED, "--"), LABELS["before"]: (MUTED, ":")}
    others = iter(list(CYCLE[1:]) * len(sets))
    for label, score in sets.items():
        if not math.isnan(number(score["mean"])):
            colour, dashes = looks.get(label) or (next(others), "-.")
            axes.axhline(score["mean"], color=colour, linestyle=dashes, linewidth=1.2, label=short_name(label))
    axes.set(xlabel="the one module that is adapted, in the network's order", xlim=(0, len(alone) + 1))
    axes.grid(False, axis="x")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
