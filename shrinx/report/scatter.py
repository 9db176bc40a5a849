"""Two modules' learned variances against each other, a dot for every trial of a search.

The paper's last figure: whatever the hyperparameters, is it the same module that ends up task-specific?
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..runs.errors import UserError
from ..runs.files import write_text
from .style import BLUE, MUTED, WIDTH, log_axis, new_figure, style
from .svg import to_svg


def write_scatter(study: Any, modules: tuple[str, str], path: Path, *, least: float | None = None) -> str:
    """Draw the trials of an Optuna study that score at least `least` into `path`; for losses, at most.

    **Returns:** a sentence that says how often the first module's variance is above the second's.
    """
    pairs = _pairs([trial.user_attrs.get("variances", {}) for trial in _good(study, least)], modules)
    if not pairs:
        raise UserError(f"No trial of {study.study_name} has learned variances and a score that is good enough.")
    first, second = modules
    above = sum(x > y for x, y in pairs)
    sentence = f"The variance of {first} is above that of {second} in {above} of {len(pairs)} trials."
    try:
        write_text(path, to_svg(scatter(pairs, modules), "scatter", f"Variances of {first} and {second}", sentence))
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from error
    return sentence


@style()
def scatter(pairs: Sequence[tuple[float, float]], modules: tuple[str, str]) -> Figure:
    """Log-log, both axes alike, with the line on which the two variances are equal."""
    values = [value for pair in pairs for value in pair]
    low, high = min(values) / 2, max(values) * 2
    figure = new_figure(WIDTH)
    axes = figure.subplots()
    axes.plot((low, high), (low, high), color=MUTED, linewidth=0.8)
    axes.plot(*zip(*pairs, strict=True), "o", color=BLUE, alpha=0.7, markeredgewidth=0)
    for which, name in zip("xy", modules, strict=True):
        log_axis(axes, which, low, high)
        axes.set(**{f"{which}label": f"variance of {name}"})
    return figure


def _good(study: Any, least: float | None) -> list[Any]:
    sign = 1 if study.direction.name == "MAXIMIZE" else -1
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
    return [trial for trial in trials if least is None or sign * trial.value >= sign * least]


def _pairs(learned: list[dict[str, float | None]], modules: tuple[str, str]) -> list[tuple[float, float]]:
    """The two variances wherever they are finite; a plain algorithm has infinite ones, stored as `None`."""
    unknown = [name for name in modules if any(variances and name not in variances for variances in learned)]
    if unknown:
        raise UserError(f"There are no modules {unknown}; known: {', '.join(learned[0])}.")
    pairs = [[variances.get(name) for name in modules] for variances in learned]
    return [(x, y) for x, y in pairs if x is not None and y is not None]
