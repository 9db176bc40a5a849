"""What a run's numbers say, in plain sentences. Every statement of a difference is backed by 95 % intervals."""

import math
from typing import Any

from .load import LoadedRun
from .numbers import (
    clean,
    has_prior,
    have_one_variance,
    have_parted,
    known,
    number,
    percent,
    short,
    spread_of_variances,
    with_interval,
    word,
)
from .paired import difference, same_tasks


def headline(run: LoadedRun) -> str:
    """The run's finding: which share is task-specific, and what adapting only that costs."""
    everything = (run.result.get("test") or {}).get("all")
    if everything and math.isnan(number(everything.get("mean"))):
        return "Adaptation to held-out tasks failed: scores with all modules adapted are not finite."
    return " ".join(filter(None, (_specific(run.result), _gain(run.result), _verdict(run.result))))


def comparison_headline(runs: list[LoadedRun]) -> str:
    """Which run is best at what they were all scored by."""
    metrics = {clean((run.result.get("metric") or {}).get("name") or "score") for run in runs}
    if len(metrics) > 1:
        return f"{word(len(runs)).capitalize()} runs, scored by different measures: {listed(sorted(metrics))}."
    return f"{word(len(runs)).capitalize()} runs, scored by {metrics.pop()}. {best_of(runs)}".strip()


def spread(run: LoadedRun) -> str:
    """What ± means in this run."""
    test = run.result.get("test") or {}
    over = {
        score.get("over") for score in (test.get("all"), test.get("selected")) if score and known([score.get("ci95")])
    }
    if "seeds" in over:
        return f"± is half the 95 % interval of the mean over {word(run.seeds)} seeds."
    if "tasks" in over:
        return (
            "± is half the 95 % interval of the mean over held-out tasks; there is one seed, so it leaves out training."
        )
    return "There are no intervals."


def spread_of(runs: list[LoadedRun]) -> str:
    """What ± means in several runs, which may differ in it."""
    found = {run.name: spread(run) for run in runs}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return " ".join(f"{clean(name)}: {text}" for name, text in found.items())


def condition_name(condition: dict[str, Any]) -> str:
    """
    >>> condition_name({"num_alphabets": 15, "num_instances": 1})
    'T = 15, K = 1'
    """
    return f"T = {condition['num_alphabets']}, K = {condition['num_instances']}"


def reference(runs: list[LoadedRun]) -> str:
    """Which condition a run of many speaks of where it names none."""
    many = [run for run in runs if run.result.get("reference")]
    if not many:
        return ""
    found = list(dict.fromkeys(condition_name(run.result["reference"]) for run in many))
    where = "" if len(many) == len(runs) else f" of {listed([run.name for run in many])}"
    return f"Where no condition{where} is named, it is {listed(found)}."


def listed(names: list[str], most: int = 6) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    shown = [clean(name) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {word(len(names) - most)} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def better(result: dict[str, Any]) -> str:
    """Which way the metric points, in words."""
    return "lower is better" if direction(result) > 0 else "higher is better"


def compare(first: dict[str, Any] | None, second: dict[str, Any] | None, lower_is_better: bool) -> str | None:
    """Is `first` "better" or "worse" than `second`? "level" if the intervals overlap, `None` if one is unknown."""
    if not first or not second:
        return None
    a, b = number(first["mean"]), number(second["mean"])
    widths = number(first.get("ci95")) + number(second.get("ci95"))
    if math.isnan(a + b + widths):
        return None
    if abs(a - b) <= widths:
        return "level"
    return "better" if (a < b) == lower_is_better else "worse"


def _specific(result: dict[str, Any]) -> str:
    modules = result.get("modules") or []
    if not modules:
        return ""
    if not has_prior(modules):
        return "This run puts no prior on the modules: all of them adapt freely and none is singled out."
    count = sum(bool(module.get("selected")) for module in modules)
    if len(modules) == 1:
        return f"The network is one module, and it is {'' if count else 'not '}task-specific."
    if have_one_variance(modules):
        return f"All modules have one variance, {short(modules[0]['variance'])}: none is singled out."
    if not have_parted(modules):
        spread = short(spread_of_variances(modules), 3)
        return (
            f"The variances have not parted: the largest is {spread} times the smallest, which says nothing yet about "
            "what is task-specific. Train longer, or raise the rate of the variances."
        )
    if count == len(modules):
        return f"All {word(count)} modules are task-specific."
    share = number(result.get("fraction"))
    part = "" if math.isnan(share) or not count else f", {percent(share)} of the parameters,"
    verb = "is" if count == 1 else "are"
    return f"{word(count).capitalize()} of {word(len(modules))} modules{part} {verb} task-specific."


def _gain(result: dict[str, Any]) -> str:
    test = result.get("test") or {}
    everything, chosen = test.get("all"), test.get("selected")
    measure = f"({clean((result.get('metric') or {}).get('name') or 'score')}, {better(result)})"
    if not everything:
        return ""
    modules = result.get("modules") or []
    count = sum(bool(module.get("selected")) for module in modules)
    if not chosen or not have_parted(modules) or not 0 < count < len(modules):
        return f"Adapting all modules gives {with_interval(everything)} {measure}."
    them = "it" if count == 1 else "them"
    return f"Adapting only {them} gives {with_interval(chosen)}, adapting all {with_interval(everything)} {measure}."


def _verdict(result: dict[str, Any]) -> str:
    test = result.get("test") or {}
    modules = result.get("modules") or []
    chosen = [module for module in modules if module.get("selected")]
    if not have_parted(modules) or not 0 < len(chosen) < len(modules):
        return ""
    if _too_wide(test.get("selected"), test.get("all")):
        return "The intervals are too wide to tell the two apart: run more seeds."
    match compare(test.get("selected"), test.get("all"), direction(result) > 0):
        case "level":
            return "The intervals overlap: sharing the rest costs nothing that can be measured here."
        case "better":
            return "Sharing the rest is better than adapting everything."
        case "worse":
            return "Sharing the rest costs accuracy."
        case _:
            return ""


def _too_wide(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Whether the two intervals together are more than half as wide as the values themselves, and overlap."""
    if not first or not second or compare(first, second, True) != "level":
        return False
    widths = number(first["ci95"]) + number(second["ci95"])
    return 2 * widths > abs(number(first["mean"])) + abs(number(second["mean"]))


def direction(result: dict[str, Any]) -> int:
    return -1 if (result.get("metric") or {}).get("lower_is_better") is False else 1


def best_of(runs: list[LoadedRun]) -> str:
    """The best of runs of one experiment and condition, and those it cannot be told from."""
    scored = {run.name: (run.result.get("test") or {}).get("all") for run in runs}
    scored = {name: score for name, score in scored.items() if score and known([score["mean"]])}
    judged_by = {(run.experiment, *(run.result.get("reference") or {}).values()) for run in runs}
    if len(scored) < 2 or len(judged_by) > 1:
        return ""
    sign = direction(runs[0].result)
    best = min(scored, key=lambda name: sign * number(scored[name]["mean"]))
    text = f"Adapting all modules, {clean(best)} is best, with {with_interval(scored[best])}."
    ahead = _ahead(runs, best)
    text += "".join(f" Seed by seed, it is ahead of {clean(name)} by {by}." for name, by in ahead.items())
    others = [name for name in scored if name not in (best, *ahead)]
    level = [name for name in others if compare(scored[name], scored[best], sign > 0) == "level"]
    return text + (f" Its interval overlaps with that of {listed(level)}." if level else "")


def _ahead(runs: list[LoadedRun], best: str) -> dict[str, str]:
    """The runs that had the same held-out tasks as the best, and by how much it is ahead: more than the interval."""
    (first,) = (run for run in runs if run.name == best)
    sign = direction(first.result)
    found = {}
    for run in runs:
        if run is first or not same_tasks(run, first):
            continue
        gap = difference(*((one.result.get("test") or {}).get("all") for one in (first, run)))
        if gap and gap["ci95"] is not None and -sign * gap["mean"] > gap["ci95"]:
            found[run.name] = with_interval({"mean": abs(gap["mean"]), "ci95": gap["ci95"]})
    return found
