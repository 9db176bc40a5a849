"""The page of several runs: the same numbers, settings and goals, a column or a row for each run."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

from . import markup, sentences
from .gallery import Drawing
from .goals import by_seed, goals
from .load import LoadedRun
from .numbers import clean, duration, percent, short, with_interval
from .paired import difference, same_tasks
from .players import columns_of, listen


def comparison_page(runs: list[LoadedRun], drawings: Iterable[Drawing], tables: dict[str, str]) -> str:
    """The page of several runs, with figures and tables that have been made already."""
    return markup.document(
        title=", ".join(dict.fromkeys(run.experiment for run in runs)),
        kicker=f"{len(runs)} runs compared",
        lead=sentences.comparison_headline(runs),
        notes=(sentences.spread_of(runs), sentences.reference(runs)),
        sections=(
            markup.section("Listen", listen(columns_of(runs))),
            markup.section("Goals", _goals(runs)),
            markup.figures(drawings),
            markup.section(
                "Numbers",
                markup.judged_voices(runs),
                markup.condition_scores(runs),
                _compared_scores(runs),
                _differences(runs),
                _compared_variances(runs),
                markup.downloads(tables),
            ),
            markup.section("Configuration", _compared_settings(runs)),
            markup.section("How to repeat", _compared_repeat(runs)),
        ),
    )


def _goals(runs: list[LoadedRun]) -> str:
    """What speech runs must show, and whether they do; those that do not are marked, and say so."""
    tables = []
    for seed, methods in by_seed(runs).items():
        found = goals(methods)
        rows = [[goal.verdict, goal.text, goal.measured] for goal in found]
        missed = [index for index, goal in enumerate(found) if goal.met is False]
        label = f"What must hold on test speakers (seed {seed}; {', '.join(run.name for run in methods.values())})"
        tables.append(markup.table(label, ["Verdict", "Goal", "Measured"], rows, missed, words=True))
    return "".join(tables)


def _compared_scores(runs: list[LoadedRun]) -> str:
    metrics = [clean((run.result.get("metric") or {}).get("name") or "score") for run in runs]
    same = len(set(metrics)) == 1
    rows = []
    for run, metric in zip(runs, metrics, strict=True):
        test = run.result.get("test") or {}
        kinds = ("before", "all", "selected" if run.result.get("fraction") != 0 else None)
        scores = (with_interval(test.get(kind)) for kind in kinds)
        effort = (run.seeds, duration(run.result.get("seconds")))
        name = [run.name, run.algorithm or "–", *([] if same else [metric])]
        rows.append([*name, *scores, percent(run.result.get("fraction")), *effort])
    header = [
        "Run",
        "Algorithm",
        *([] if same else ["Metric"]),
        "Before",
        "All",
        "Selected",
        "Share selected",
        "Seeds",
        "Time",
    ]
    return markup.table(
        f"Held-out {metrics[0]}; {sentences.better(runs[0].result)}" if same else "Held-out scores", header, rows
    )


def _differences(runs: list[LoadedRun]) -> str:
    """Of any two runs that had the same held-out tasks: their difference is better known than either score."""
    rows = []
    for first, second in combinations(runs, 2):
        if same_tasks(first, second):
            ours, theirs = (run.result.get("test") or {} for run in (first, second))
            scores = [difference(ours.get(kind), theirs.get(kind)) for kind in ("before", "all", "selected")]
            if any(scores):
                rows.append([f"{first.name} − {second.name}", *map(with_interval, scores)])
    return markup.table("Differences, seed by seed", ["Runs", "Before", "All", "Selected"], rows) if rows else ""


def _compared_variances(runs: list[LoadedRun]) -> str:
    found = [{module["name"]: module for module in run.result.get("modules") or ()} for run in runs]
    names = list(dict.fromkeys(name for modules in found for name in modules))
    rows = [[name, *(_variance(modules.get(name)) for modules in found)] for name in names]
    return markup.table("Variance of each module; * selected", ["Module", *(run.name for run in runs)], rows)


def _variance(module: dict[str, Any] | None) -> str:
    if module is None:
        return "–"
    value = "no prior" if module.get("variance") is None else short(module["variance"])
    return f"{value} *" if module.get("selected") else value


def _compared_settings(runs: list[LoadedRun]) -> str:
    asked = ("experiment", "algorithm", "preset", "seeds")
    settings = [{key: run.config.get(key) for key in asked} | (run.config.get("config") or {}) for run in runs]
    return _side_by_side("Every setting; those that differ come first and are marked", "Setting", runs, settings)


def _compared_repeat(runs: list[LoadedRun]) -> str:
    commands = "".join(
        f"<h3>{markup.text(run.name)}</h3>\n<pre><code>{markup.command(run)}</code></pre>\n"
        for run in runs
        if run.environment.get("command")
    )
    others = [{key: value for key, value in run.environment.items() if key != "command"} for run in runs]
    return commands + _side_by_side("Where and with what; what differs comes first and is marked", "What", runs, others)


def _side_by_side(label: str, what: str, runs: list[LoadedRun], found: list[dict[str, Any]]) -> str:
    """A column per run, rows that differ first."""
    keys = list(dict.fromkeys(key for each in found for key in each))
    table = {key: [markup.value(each[key]) if key in each else "–" for each in found] for key in keys}
    differing = [key for key in keys if len(set(table[key])) > 1]
    rows = [[key, *table[key]] for key in [*differing, *(key for key in keys if key not in differing)]]
    return markup.table(label, [what, *(run.name for run in runs)], rows, range(len(differing)), words=True)
