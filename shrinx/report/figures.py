"""The figures of one run: pure functions from its results to a `Figure`, or `None` where there is nothing to draw."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .axes import (
    adaptation_axes,
    band,
    fit_to,
    interval,
    log_scale,
    metric,
    name_rows,
    scale,
    short_name,
    within_bounds,
)
from .numbers import clean, known, log_variances, mean, number, numbers
from .style import (
    BLUE,
    CYCLE,
    INK,
    MUTED,
    PAPER,
    SELECTED,
    VERMILLION,
    log_axis,
    module_colours,
    new_figure,
    plain_axis,
    style,
)

MAX_ROWS = 30
"""With more modules than this a row each would be unreadable: they are drawn side by side, in order, without names."""
_SERIES = (BLUE, VERMILLION, *CYCLE[1:], INK)
_LABELS = {"all": "all modules", "selected": "selected modules", "before": "before adaptation"}


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
    sets = {_LABELS[key]: test[key] for key in ("before", "all", "selected") if test.get(key)}
    sets |= test.get("subsets") or {}
    alone = test.get("only") or {}
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
            chosen = label in names if single else label == _LABELS["selected"]
            colour = SELECTED if chosen else INK if not single else BLUE
            interval(axis, score, place, colour, "o" if single else "D")
        name_rows(axis, [f"only {label}" if label in alone else label for label, _ in rows])
        if sets and alone:
            axis.axhline(len(sets) - 0.5, color=MUTED, linewidth=0.6)
    scale(axis, which, values)
    within_bounds(axis, which, metric(result), values)
    axis.set(**{f"{which}label": metric(result)})
    return figure


@style()
def adaptation(result: dict[str, Any]) -> Figure | None:
    """Score against steps of adaptation, far past the number of steps used in training, which is marked."""
    curves = result.get("curves")
    if not curves or not curves["steps"] or not curves["series"]:
        return None
    modules = result.get("modules") or []
    names = [module["name"] for module in modules]
    colours = module_colours(names, [bool(module.get("selected")) for module in modules])
    few = len(set(colours.values())) == len(names) > 1
    figure = new_figure(3.3 if few else 2.9)
    axes = figure.subplots()
    bold = {"all": INK, "selected": SELECTED}
    # The two that matter are drawn last, on top. A single module alone is the same as all.
    order = [label for label in curves["series"] if label not in bold and names != [label]]
    legend: dict[str, Any] = {}
    for label in [*order, *(label for label in bold if label in curves["series"])]:
        strong = label in bold
        colour = bold.get(label) or colours.get(label, INK)
        series = curves["series"][label]
        [line] = axes.plot(
            curves["steps"],
            numbers(series["mean"]),
            color=colour,
            linewidth=1.8 if strong else 1.0 if few else 0.6,
            alpha=1.0 if strong else 0.8 if few else 0.45,
            linestyle="--" if label == "selected" else "-" if strong or label in names else "-.",
        )
        if strong:
            band(axes, curves["steps"], series["mean"], series.get("ci95"), colour)
        if strong or few or label not in names:
            legend[_LABELS.get(label) or f"{'only ' if label in names else ''}{short_name(label)}"] = line
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
    axes.set_ylabel(metric(result))
    first = [_LABELS[label] for label in bold if _LABELS[label] in legend]
    shown = [*first, *(label for label in legend if label not in first)]
    figure.legend([legend[label] for label in shown], shown, loc="outside lower center", ncols=2)
    return figure


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
    colours = module_colours(names, selected)
    few = len(set(colours.values())) == len(names)
    figure = new_figure(3.1 if few else 2.9)
    axes = figure.subplots()
    steps = [row["step"] for row in rows]
    averages = [log_variances(row, len(names)) for row in rows]
    legend: dict[str, Any] = {}
    for index in range(len(names)):
        [line] = axes.plot(
            steps,
            [average[index] for average in averages],
            color=colours[names[index]],
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
            name = _LABELS.get(label, short_name(label))
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
    axes.set(xlabel=clean(description.get("x_label") or ""), ylabel=clean(description.get("y_label") or ""))
    if description.get("equal"):
        axes.set_aspect("equal", adjustable="datalim")
    if any(series.get("label") for series in drawn):
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def thin(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most about `most` of the rows, evenly spaced, the last one among them."""
    stride = max(1, math.ceil(len(rows) / most))
    return list(rows[::-1][::stride][::-1])


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
    looks = {_LABELS["all"]: (INK, "-"), _LABELS["selected"]: (SELECTED, "--"), _LABELS["before"]: (MUTED, ":")}
    others = iter(list(CYCLE[1:]) * len(sets))
    for label, score in sets.items():
        if not math.isnan(number(score["mean"])):
            colour, dashes = looks.get(label) or (next(others), "-.")
            axes.axhline(score["mean"], color=colour, linestyle=dashes, linewidth=1.2, label=short_name(label))
    axes.set(xlabel="the one module that is adapted, in the network's order", xlim=(0, len(alone) + 1))
    axes.grid(False, axis="x")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
