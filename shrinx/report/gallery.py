"""Which figures a report has, each with its name, its title and the sentences beneath it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.figure import Figure

from . import (
    captions,
    comparison,
    conditions,
    extra_figures,
    held_out_figures,
    module_figures,
    sentences,
    speech,
    training_figures,
)
from .load import LoadedRun
from .numbers import clean
from .svg import to_svg
from .tables import extra_names, slug


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG text, with the words that belong to it."""

    name: str
    title: str
    caption: str
    svg: str


# A caption may need numbers that are there only if the figure is: it is written after the figure is drawn.
_Plan = tuple[str, str, Figure | None, Callable[[], str]]


def run_drawings(run: LoadedRun) -> tuple[Drawing, ...]:
    """The figures of one run, without those it has no numbers for."""
    result, rows = run.result, run.metrics
    plans: list[_Plan] = [
        *_conditions([run], [run.name]),
        ("scores", "Held-out tasks", module_figures.scores(result), lambda: captions.on_scores(result)),
        (
            "variances",
            "Variance of each module",
            module_figures.variances(result),
            lambda: captions.on_variances(result),
        ),
        *_adaptation(run),
        ("examples", "Example predictions", held_out_figures.examples(result), captions.on_examples),
    ]
    plans += _speech([run])
    for name, extra in zip(extra_names(result), result.get("figures") or (), strict=True):
        title, caption = clean(extra.get("title") or extra["name"]), clean(extra.get("caption") or "")
        plans.append((name, title, extra_figures.extra(extra), lambda caption=caption: caption))
    plans += [
        ("training", "Training", training_figures.training_loss(rows), lambda: captions.on_training(run)),
        (
            "training-variances",
            "Variances during training",
            training_figures.training_variances(rows, result),
            lambda: captions.on_training_variances(run),
        ),
    ]
    return _drawings(plans)


def comparison_drawings(runs: list[LoadedRun]) -> tuple[Drawing, ...]:
    """The figures that put several runs side by side; runs scored by different measures get figures of their own."""
    order = [run.name for run in runs]
    groups = comparison.by_metric(runs)
    plans: list[_Plan] = _conditions(runs, order)
    for index, (metric, group) in enumerate(groups.items()):
        ending = f"-{index + 1}-{slug(metric)}" if len(groups) > 1 else ""
        title = f": {metric}" if len(groups) > 1 else ""
        better = sentences.better(group[0].result)
        plans += [
            (
                f"scores{ending}",
                f"Held-out tasks{title}",
                comparison.scores(group, order),
                lambda group=group: captions.on_compared_scores(group),
            ),
            (
                f"adaptation{ending}",
                f"Adapting all modules{title}",
                comparison.adaptation(group, order),
                lambda better=better: captions.on_compared_adaptation(better),
            ),
        ]
    moved = ("variances", "Variance of each module", comparison.variances(runs))
    plans.append((*moved, lambda: captions.on_compared_variances(runs)))
    plans += _speech(runs)
    for extra in comparison.overlays(runs):
        caption = clean(extra.get("caption") or "")
        name, title = f"overlay-{slug(extra['name'])}", clean(extra.get("title") or extra["name"])
        plans.append((name, title, extra_figures.extra(extra), lambda caption=caption: caption))
    return _drawings(plans)


def _adaptation(run: LoadedRun) -> list[_Plan]:
    """Speech runs have curves of their own kind."""
    if speech.is_speech(run):
        return []
    result = run.result
    return [
        ("adaptation", "Adapting longer", held_out_figures.adaptation(result), lambda: captions.on_adaptation(result))
    ]


def _conditions(runs: list[LoadedRun], order: list[str]) -> list[_Plan]:
    found = conditions.plans(runs, order)
    return [(name, title, figure, lambda text=text: text) for name, title, figure, text in found]


def _speech(runs: list[LoadedRun]) -> list[_Plan]:
    found = [(name, title, figure, lambda text=text: text) for name, title, figure, text in speech.plans(runs)]
    if len(runs) == 1:
        return found
    # Which layers learn the voice is every run's own matter: these figures do not overlay.
    blocks = [(run, extra) for run in runs for extra in run.result.get("figures") or () if speech.is_speech(run)]
    for run, extra in blocks:
        name, title = f"{slug(extra['name'])}-{slug(run.name)}", f"{clean(extra['title'])}: {clean(run.name)}"
        found.append((name, title, extra_figures.extra(extra), lambda text=clean(extra["caption"]): text))
    return found


def _drawings(plans: Iterable[_Plan]) -> tuple[Drawing, ...]:
    drawn = []
    for name, title, figure, caption in plans:
        if figure is not None:
            text = caption()
            drawn.append(Drawing(name, title, text, to_svg(figure, name, title, text)))
    return tuple(drawn)
