"""How every figure looks: one set of matplotlib settings, one set of colours.

Figures are as wide as a phone, in points, and scale up: a label that can be read there can be read anywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from .numbers import short

# Okabe and Ito's colours, told apart by readers with any colour vision. Their yellow is too pale for lines on white.
BLUE, VERMILLION, GREEN, SKY, PURPLE, ORANGE = "#0072b2", "#d55e00", "#009e73", "#56b4e9", "#cc79a7", "#e69f00"
CYCLE = (BLUE, GREEN, PURPLE, ORANGE, SKY)
SELECTED = VERMILLION
# The page replaces these four by its own colours, which follow the reader's light or dark setting.
INK, MUTED, RULE, PAPER = "#1f2328", "#8b929c", "#dfe2e7", "#ffffff"
WIDTH = 4.5
FONT = "DejaVu Sans"

SETTINGS: Any = {
    "font.family": FONT,  # Ships with matplotlib, so the layout is the same everywhere.
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "text.color": INK,
    "text.parse_math": False,  # A module may be called "$w".
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # Text stays text: it can be searched, selected and read aloud.
    "svg.hashsalt": "shrinx",  # Otherwise identifiers are random.
}


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib has these settings and none of the user's, so that equal runs give equal files."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def new_figure(height: float) -> Figure:
    """An empty figure of the common width, without pyplot and its global state."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    return figure


def log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """Make `which` ("x" or "y") logarithmic from `low` to `high`, with labels such as 0.05 and 10⁻³."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    few_decades = high < 150 * low
    axis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if high < 15 * low else (1.0, 3.0) if few_decades else (1.0,), numticks=6)
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def plain_axis(axes: Axes, which: str) -> None:
    """Labels such as 20000 and 1.5 × 10⁶ instead of matplotlib's common factor in the corner."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def module_looks(names: list[str], selected: list[bool]) -> dict[str, tuple[str, str]]:
    """Colour and dashes per module, the same in every figure; beyond a dozen only selected or not can be told apart."""
    looks = [(colour, dashes) for dashes in ("-", "--") for colour in (*CYCLE, MUTED)]
    if len(names) <= len(looks):
        return dict(zip(names, looks, strict=False))
    return {name: (SELECTED if chosen else MUTED, "-") for name, chosen in zip(names, selected, strict=True)}
