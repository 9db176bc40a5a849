"""What a run's numbers say, in plain sentences. Every statement of a difference is backed by 95 % intervals."""

import math
from typing import Any

from .load import LoadedRun
from .numbers import clean, known, log_variances, mean, number, percent, short, with_interval, word


def headline(run: LoadedRun) -> str:
    """The run's finding: which share is task-specific, and what adapting only that costs."""
    return " ".join(filter(None, (_specific(run.result), _gain(run.result), _verdict(run.result))))


def comparison_headline(runs: list[LoadedRun]) -> str:
    """Which run is best at what they were all scored by."""
    metrics = {clean((run.result.get("metric") or {}).get("name") or "score") for run in runs}
    if len(metrics) > 1:
        return f"{word(len(runs)).capitalize()} runs, scored by different measures: {listed(sorted(metrics))}."
    return f"{word(len(runs)).capitalize()} runs, scored by {metrics.pop()}. {_best(runs)}".strip()


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


def condition_name(condition: dict[str, Any]) -> str:
    """
    >>> condition_name({"num_alphabets": 15, "num_instances": 1})
    'T = 15, K = 1'
    """
    return f"T = {condition['num_alphabets']}, K = {condition['num_instances']}"


def reference(runs: list[LoadedRun]) -> str:
    """Which condition a run of many speaks of where it names none."""
    found = list(dict.fromkeys(condition_name(run.result["reference"]) for run in runs if run.result.get("reference")))
    return f"Where no condition is named, it is {listed(found)}." if found else ""


def on_variances(result: dict[str, Any]) -> str:
    modules = result.get("modules") or []
    text = "How far tasks move each module away from its shared value, on a log scale"
    text += "; dots are seeds." if any(len(known(m.get("variances"))) > 1 for m in modules) else "."
    chosen = known(m.get("variance") for m in modules if m.get("selected"))
    others = known(m.get("variance") for m in modules if not m.get("selected"))
    if not chosen:
        return f"{text} No module is selected as task-specific."
    if not others:
        return f"{text} All are selected."
    names = [m["name"] for m in modules if m.get("selected")]
    text += f" Selected: {listed(names, 3)}."
    if max(others) > 0 and min(chosen) > max(others):
        ratio = short(min(chosen) / max(others), 2)
        text += f" Each of them varies at least {ratio} times as much as any other module."
    return text


def on_scores(result: dict[str, Any]) -> str:
    test = result.get("test") or {}
    text = f"Score on tasks never trained on, with 95 % intervals; {better(result)}."
    alone = {name: score for name, score in (test.get("only") or {}).items() if known([score["mean"]])}
    if len(alone) > 1:
        best = min(alone, key=lambda name: _sign(result) * number(alone[name]["mean"]))
        text += f" The best single module is {clean(best)}, with {with_interval(alone[best])}."
    before, after = test.get("before"), test.get("all")
    if before and after and known([before["mean"]]) and known([after["mean"]]):
        text += f" Before adaptation it is {with_interval(before)}, after adapting all {with_interval(after)}."
    return text


def on_adaptation(result: dict[str, Any]) -> str:
    curves = result["curves"]
    horizon, last = number(curves.get("horizon")), curves["steps"][-1]
    text = "Score on held-out tasks against steps of adaptation."
    if math.isnan(horizon):
        return text
    text += f" Training looks {short(horizon)} steps ahead (dotted line); the curves go on to {short(last)}."
    for label, what in (("all", "adapting all"), ("selected", "adapting the selected")):
        change = _change(result, label)
        text += f" After the line, {what} {change}." if change else ""
    return text


def on_training(run: LoadedRun) -> str:
    rows = [row for row in run.metrics if known(row.get("query_loss"))]
    first, last = mean(rows[0]["query_loss"]), mean(rows[-1]["query_loss"])
    text = "Loss on query data after adaptation"
    text += f", averaged over {_lanes(run)}; the band is their range." if _lanes(run) else "."
    text += f" It goes from {short(first)} to {short(last)} in {rows[-1]['step']} updates."
    failed = sum(int(count) for row in run.metrics for count in known(row.get("num_failed")))
    return text + (f" {failed} tasks failed to adapt and were left out." if failed else " No task failed to adapt.")


def on_training_variances(run: LoadedRun) -> str:
    text = "Log variance of each module."
    text = f"Logarithm of each module's variance, averaged over {_lanes(run)}." if _lanes(run) else text
    drift = _drift(run)
    if drift is None:
        return text
    name, change = drift
    if abs(change) < 0.2:
        return f"{text} All have settled: none changes by more than {short(abs(change), 2)} in the last quarter."
    direction = "rising" if change > 0 else "falling"
    return f"{text} {clean(name)} is still {direction}, by {short(abs(change), 2)} in the last quarter."


def on_examples() -> str:
    return (
        "Held-out tasks: the truth (grey), the points given (dots), and the prediction after adapting to those points. "
        "Good predictions follow the grey curve also away from the dots."
    )


def on_compared_scores(runs: list[LoadedRun]) -> str:
    text = f"Score on tasks never trained on, with 95 % intervals; {better(runs[0].result)}."
    return f"{text} {_best(runs)}".strip()


def on_compared_adaptation(direction: str) -> str:
    return (
        f"Score of adapting all modules against steps; {direction}. The mark on each curve is the number of steps that "
        "training looks ahead. Curves that turn after it overfit."
    )


def on_compared_variances() -> str:
    return "How far tasks move each module away from its shared value. On marks that lie together the runs agree."


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
    return "lower is better" if _sign(result) > 0 else "higher is better"


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
    if not known(module.get("variance") for module in modules):
        return "This run puts no prior on the modules: all of them adapt freely and none is singled out."
    count = sum(bool(module.get("selected")) for module in modules)
    if len(modules) == 1:
        return f"The network is one module, and it is {'' if count else 'not '}task-specific."
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
    if not chosen or not 0 < count < len(modules):
        return f"Adapting all modules gives {with_interval(everything)} {measure}."
    them = "it" if count == 1 else "them"
    return f"Adapting only {them} gives {with_interval(chosen)}, adapting all {with_interval(everything)} {measure}."


def _verdict(result: dict[str, Any]) -> str:
    test = result.get("test") or {}
    chosen = [module for module in result.get("modules") or () if module.get("selected")]
    if not 0 < len(chosen) < len(result.get("modules") or ()):
        return ""
    if _too_wide(test.get("selected"), test.get("all")):
        return "The intervals are too wide to tell the two apart: run more seeds."
    match compare(test.get("selected"), test.get("all"), _sign(result) > 0):
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


def _change(result: dict[str, Any], label: str) -> str:
    """How a curve goes on after the horizon."""
    curves = result["curves"]
    series = curves["series"].get(label)
    if series is None or curves.get("horizon") not in curves["steps"]:
        return ""
    at = curves["steps"].index(curves["horizon"])
    widths = series.get("ci95") or [None] * len(curves["steps"])
    then, end = ({"mean": series["mean"][index], "ci95": widths[index]} for index in (at, -1))
    if not known([then["mean"]]):
        return ""
    if not known([end["mean"]]):
        return "diverges"
    values = f"({short(then['mean'])} to {short(end['mean'])})"
    words = {"better": "gets better still", "worse": "gets worse", "level": "does not change by more than its interval"}
    return f"{words.get(compare(end, then, _sign(result) > 0) or '', 'moves')} {values}"


def _drift(run: LoadedRun) -> tuple[str, float] | None:
    """The module whose log variance changed most in the last quarter of training, and by how much."""
    names = [module["name"] for module in run.result.get("modules") or ()]
    rows = [row for row in run.metrics if row.get("log_variance")]
    if len(rows) < 4 or not names:
        return None
    before, after = (log_variances(row, len(names)) for row in (rows[-1 - len(rows) // 4], rows[-1]))
    changes = [(name, b - a) for name, a, b in zip(names, before, after, strict=True) if not math.isnan(b - a)]
    return max(changes, key=lambda pair: abs(pair[1]), default=None)


def _lanes(run: LoadedRun) -> str:
    """What trainings side by side are averaged over; nothing if there is one."""
    conditions = len(run.result.get("conditions") or ())
    seeds = f"{word(run.seeds)} seeds" if run.seeds > 1 else ""
    return f"{word(conditions)} conditions" + (f" with {seeds} each" if seeds else "") if conditions else seeds


def _sign(result: dict[str, Any]) -> int:
    return -1 if (result.get("metric") or {}).get("lower_is_better") is False else 1


def _best(runs: list[LoadedRun]) -> str:
    """The best of runs that were scored alike, and those it cannot be told from."""
    scored = {run.name: (run.result.get("test") or {}).get("all") for run in runs}
    scored = {name: score for name, score in scored.items() if score and known([score["mean"]])}
    if len(scored) < 2:
        return ""
    sign = _sign(runs[0].result)
    best = min(scored, key=lambda name: sign * number(scored[name]["mean"]))
    text = f"Adapting all modules, {clean(best)} is best, with {with_interval(scored[best])}."
    level = [name for name in scored if name != best and compare(scored[name], scored[best], sign > 0) == "level"]
    return text + (f" Its interval overlaps with that of {listed(level)}." if level else "")
