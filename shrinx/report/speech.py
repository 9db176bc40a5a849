"""Figures and tables of speech runs: curves, spectrograms, similarity, and what the measures say."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..data.speech import RATE
from .axes import adaptation_axes, fit_to, name_rows, scale, short_name
from .comparison import look
from .load import LoadedRun
from .numbers import clean, known, numbers, short, with_interval
from .players import Column, columns_of
from .style import BLUE, INK, MUTED, new_figure, plain_axis, style
from .voices import MEASURES, REAL, method_title

BOUNDS = ("same speaker", "other speakers")
"""What real speech scores in similarity: the ceiling and the floor."""
_SHOWN = 2.0
"""Seconds in a spectrogram."""


def is_speech(run: LoadedRun) -> bool:
    return run.result.get("speech") is not None


@style()
def curves(series: Sequence[tuple[str, LoadedRun, str]]) -> Figure | None:
    """Negative log-likelihood against steps of adaptation; the dot is where voices stop to speak.

    A series is a title, a run, and the name of the curve in it.
    """
    drawn = [(title, run, name) for title, run, name in series if known(_curve(run, name).get("mean"))]
    if not drawn:
        return None
    figure = new_figure(2.7 + 0.16 * math.ceil(len(drawn) / 2))
    axes = figure.subplots()
    values = []
    for index, (title, run, name) in enumerate(drawn):
        colour, dashes, marker = look(index)
        steps, curve = run.result["curves"]["steps"], _curve(run, name)
        means = numbers(curve["mean"])
        axes.plot(steps, means, dashes, color=colour, label=short_name(title, 34))
        stop = run.result["speech"]["stops"].get(name)
        if stop in steps:
            axes.plot(stop, means[steps.index(stop)], marker, color=colour, markersize=4.5)
        values += known(means)
    scale(axes, "y", values)
    fit_to(axes, values)
    adaptation_axes(axes, max(run.result["curves"]["steps"][-1] for _, run, _ in drawn))
    axes.set_ylabel("nats per sample")
    figure.legend(loc="outside lower center", ncols=1 if len(drawn) == 1 else 2)
    return figure


@style()
def spectrograms(columns: Sequence[Column]) -> Figure | None:
    """The first string of the first test speaker: real, and by every method."""
    shown = _same_string(columns)
    if not shown:
        return None
    figure = new_figure(0.4 + 0.82 * len(shown))
    grid = figure.subplots(len(shown), 1, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (title, wave) in zip(grid, shown, strict=True):
        power, extent = spectrogram(wave[: int(_SHOWN * RATE)])
        axes.imshow(
            power, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=-60, vmax=0, interpolation="none"
        )
        axes.set_title(short_name(title, 48), loc="left", pad=2)
        axes.grid(False)
        axes.set_yticks([0, 4], ["0", "4"])
    grid[-1].set_xlabel("seconds")
    grid[len(grid) // 2].set_ylabel("kHz")
    return figure


def spectrogram(wave: np.ndarray) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """Decibels below the loudest, `[frequencies, moments]`, and the seconds and kHz they span."""
    window, hop = 320, 160
    padded = np.pad(wave, (0, max(0, window - len(wave))))
    pieces = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    power = np.abs(np.fft.rfft(pieces * np.hanning(window)[None], axis=1)[:, : window // 2]) ** 2
    decibels = 10 * np.log10(np.maximum(power / max(power.max(), 1e-12), 1e-9))
    return decibels.T, (0.0, len(wave) / RATE, 0.0, RATE / 2000)


@style()
def similarity(columns: Sequence[Column]) -> Figure | None:
    """Boxes over test speakers, between what real speech of the same and of other speakers scores."""
    boxes = _similarities(columns)
    if not boxes:
        return None
    figure = new_figure(0.7 + 0.26 * max(2, len(boxes)))
    axes = figure.subplots()
    axes.boxplot(
        list(boxes.values()), orientation="horizontal", positions=range(len(boxes)), widths=0.55, whis=(0, 100),
        boxprops={"color": MUTED}, whiskerprops={"color": MUTED}, capprops={"color": MUTED},
        medianprops={"color": INK},
    )  # fmt: skip
    for place, values in enumerate(boxes.values()):
        axes.plot(values, [place] * len(values), "o", color=BLUE, markersize=2.6, alpha=0.7, markeredgewidth=0)
    name_rows(axes, list(boxes))
    plain_axis(axes, "x")
    axes.set_xlabel("cosine of d-vectors")
    return figure


def plans(runs: Sequence[LoadedRun]) -> list[tuple[str, str, Figure | None, str]]:
    """Name, title, figure and caption of what a page of speech runs has besides the rest."""
    spoken = [run for run in runs if is_speech(run)]
    columns = columns_of(runs)
    drawn: list[tuple[str, str, Figure | None, str]] = []
    for count, series in _by_size(spoken).items():
        ending = f"-{count}" if count else ""
        after = f", {count} utterances" if count else ""
        caption = f"{_CURVES} {_lowest_and_last(series)}"
        drawn.append((f"steps{ending}", f"Adapting longer{after}", curves(series), caption))
    drawn += [
        ("similarity", "Is it the same voice?", similarity(columns), _SIMILARITY),
        ("spectrograms", "Spectrograms", spectrograms(columns), _SPECTROGRAMS),
    ]
    return drawn


def judged(runs: Sequence[LoadedRun]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of measures; no rows where nothing was judged."""
    columns = columns_of(runs)
    likelihoods = [(column.run.result.get("test") or {}).get("subsets") or {} for column in columns]
    rows = [
        [
            column.title,
            with_interval(subsets.get(_subset(column.method))),
            *(with_interval(_score(column, measure)) for measure in MEASURES),
        ]
        for column, subsets in zip(columns, likelihoods, strict=True)
    ]
    if not any(column.run.measures for column in columns):
        return [], []
    first = columns[0]
    anchors = [
        ["real speaker", "–", *(with_interval(first.run.measures.get(m, {}).get(REAL)) for m in MEASURES)],
        *(
            [f"real, {bound}", "–", with_interval(first.run.measures.get("similarity", {}).get(bound)), "–", "–"]
            for bound in BOUNDS
        ),
    ]
    header = ["Voice", "Negative log-likelihood", *MEASURES.values()]
    return header, [*rows, *(row for row in anchors if set(row[1:]) != {"–"})]


_CURVES = (
    "Negative log-likelihood of test speakers' other utterances against steps of adaptation, mean over speakers. These "
    "differ far more than methods do, so that intervals, which are in the tables, would hide the curves. The mark is "
    "where the voices on this page stop. Curves that turn upward overfit."
)
_SIMILARITY = (
    "Cosine between d-vectors of what a voice says and of what the real speaker says; a dot is a test speaker, the box "
    "holds half of them. Real strings of the same speaker are the ceiling, those of others the floor."
)
_SPECTROGRAMS = (
    "The first two seconds of the first string above, by the real speaker and by every method: decibels below the "
    "loudest, from 0 (bright) to -60 (dark)."
)


def _by_size(runs: Sequence[LoadedRun]) -> dict[str, list[tuple[str, LoadedRun, str]]]:
    """Curves that belong into one figure: all of one run, of several those that adapt to equally much."""
    if len(runs) == 1:
        return {"": [(name, runs[0], name) for name in (runs[0].result.get("curves") or {}).get("series") or {}]}
    groups: dict[str, list[tuple[str, LoadedRun, str]]] = {}
    for run in runs:
        for name in (run.result.get("curves") or {}).get("series") or {}:
            modules, _, size = name.partition(", ")
            title = clean(run.label) if modules == "all" else f"{clean(run.label)}, {modules}"
            groups.setdefault(size.removesuffix(" utterances"), []).append((title, run, name))
    return groups


def _lowest_and_last(series: Sequence[tuple[str, LoadedRun, str]]) -> str:
    """How far each curve comes down, and where it ends."""
    found = [(title, known(_curve(run, name).get("mean"))) for title, run, name in series]
    ends = [f"{title} {short(min(means))} and {short(means[-1])}" for title, means in found if means]
    return f"Lowest and last: {'; '.join(ends)}." if ends else ""


def _curve(run: LoadedRun, name: str) -> dict[str, Any]:
    return ((run.result.get("curves") or {}).get("series") or {}).get(name) or {}


def _subset(method: str) -> str:
    return method_title(method).replace(" modules", "")


def _score(column: Column, measure: str) -> dict[str, Any] | None:
    return (column.run.measures.get(measure) or {}).get(column.method)


def _similarities(columns: Sequence[Column]) -> dict[str, list[float]]:
    scores = {column.title: _score(column, "similarity") for column in columns}
    found = {title: known((score or {}).get("values")) for title, score in scores.items()}
    found = {title: values for title, values in found.items() if values}
    bounds = columns[0].run.measures.get("similarity") or {} if found else {}
    real = {f"real, {bound}": known((bounds.get(bound) or {}).get("values")) for bound in BOUNDS}
    return {**{title: values for title, values in real.items() if values}, **found}


def _same_string(columns: Sequence[Column]) -> list[tuple[str, np.ndarray]]:
    if not columns:
        return []
    first = columns[0].voices
    speaker, digits = first.speakers[0], first.digits[0][0]
    shown = [("real speaker", first.waves[REAL][0][0])]
    for column in columns:
        at = column.voices.find(speaker, digits)
        if at is not None:
            shown.append((column.title, column.voices.waves[column.method][at[0]][at[1]]))
    return shown
