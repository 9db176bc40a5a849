"""What figures share: names, axes and intervals."""

import math
import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from .numbers import clean, known, number, numbers
from .style import MUTED, PAPER, log_axis, plain_axis

LARGE_SPREAD = 20.0
"""Ratio of largest to smallest value from which a scale is logarithmic."""


def metric(result: dict[str, Any]) -> str:
    return clean((result.get("metric") or {}).get("name") or "score")


LABELS = {"all": "all modules", "selected": "selected modules", "before": "before adaptation"}


def short_name(name: str, most: int = 24) -> str:
    """The beginning and the end of a long name: modules of a network often differ only in the last part."""
    name = clean(name)
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"


def folded(label: str, most: int = 30) -> str:
    """In lines short enough for the side of a figure."""
    return textwrap.fill(clean(label), most)


def name_rows(axes: Axes, names: list[str]) -> None:
    """One row per name, the first on top."""
    axes.yaxis.set_major_locator(FixedLocator(list(range(len(names)))))
    axes.set_yticklabels([short_name(name) for name in names])
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def interval(
    axes: Axes, score: dict[str, Any], place: float | int, colour: str, marker: str, *, filled: bool = True
) -> None:
    middle, width = number(score["mean"]), number(score.get("ci95"))
    if math.isnan(middle):
        axes.annotate("none", (0.01, place), xycoords=("axes fraction", "data"), va="center", color=MUTED)
        return
    if not math.isnan(width):
        axes.plot([middle - width, middle + width], [place] * 2, color=colour, linewidth=2.2, alpha=0.45)
    face = colour if filled else PAPER
    # Whole even at the end of the axis, where an accuracy of one is.
    axes.plot(middle, place, marker, color=colour, markersize=4, markerfacecolor=face, clip_on=False)


def band(axes: Axes, xs: list[Any], means: list[Any], widths: list[Any] | None, colour: str) -> None:
    if widths is None or not known(widths):
        return
    pairs = list(zip(numbers(means), numbers(widths), strict=True))
    # A band that reaches zero goes off a log axis, whose limits come from the means.
    axes.fill_between(xs, [m - w for m, w in pairs], [m + w for m, w in pairs], color=colour, alpha=0.13, linewidth=0)


def scale(axes: Axes, which: str, values: list[float]) -> None:
    """Logarithmic if the values differ by orders of magnitude, linear otherwise."""
    found = known(values)
    if found and min(found) > 0 and max(found) > LARGE_SPREAD * min(found):
        log_scale(axes, which, found)
    else:
        plain_axis(axes, which)
        (axes.xaxis if which == "x" else axes.yaxis).set_major_locator(MaxNLocator(5))


def log_scale(axes: Axes, which: str, positive: list[float]) -> None:
    ratio = max(positive) / min(positive)
    # At least a decade, so that there is more than one label to read values by.
    margin = max(ratio**0.06, (10 / ratio) ** 0.5)
    log_axis(axes, which, min(positive) / margin, max(positive) * margin)


def fit_to(axes: Axes, values: list[float]) -> None:
    """Leave room for the values, not for all of their intervals: with two seeds these are ten times as wide."""
    found = known(values)
    if found and axes.get_yscale() == "linear":
        margin = 0.35 * (max(found) - min(found)) or 0.1 * abs(found[0]) or 1.0
        axes.set_ylim(min(found) - margin, max(found) + margin)


def within_bounds(axes: Axes, which: str, name: str, values: list[float]) -> None:
    """No axis of an accuracy goes below 0 or beyond 1, however wide its intervals and margins are."""
    found = known(values)
    if "accuracy" in name.lower() and found and min(found) >= 0 and max(found) <= 1:
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        axes.set(**{f"{which}lim": (max(low, 0.0), min(high, 1.0))})


def adaptation_axes(axes: Axes, last: float | int) -> None:
    """Linear from 0 to 1 and logarithmic from there: step 0, before adaptation, belongs into the figure."""
    axes.set_xscale("symlog", linthresh=1.0, linscale=0.4)
    powers = [10.0**k for k in range(12) if 10.0**k <= last * 1.01]
    axes.xaxis.set_major_locator(FixedLocator([0.0, *powers]))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    plain_axis(axes, "x")
    axes.set_xlim(0, max(last, 1))
    axes.set_xlabel("steps of adaptation")
