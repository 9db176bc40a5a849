"""The sentences beneath figures."""

import math
from typing import Any

from .load import LoadedRun
from .numbers import clean, known, log_variances, mean, number, short, with_interval, word
from .sentences import best_of, better, compare, direction, listed


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
        ratio = min(chosen) / max(others)
        far = f"Each of them varies at least {short(ratio, 2)} times as much as any other module."
        text += f" {far if ratio >= 2 else 'They hardly stand out: others vary nearly as much.'}"
    return text


def on_scores(result: dict[str, Any]) -> str:
    test = result.get("test") or {}
    text = f"Score on tasks never trained on, with 95 % intervals; {better(result)}."
    alone = {name: score for name, score in (test.get("only") or {}).items() if known([score["mean"]])}
    if len(alone) > 1:
        best = min(alone, key=lambda name: direction(result) * number(alone[name]["mean"]))
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
    going = "rising" if change > 0 else "falling"
    return f"{text} {clean(name)} is still {going}, by {short(abs(change), 2)} in the last quarter."


def on_examples() -> str:
    return (
        "Held-out tasks: the truth (grey), the points given (dots), and the prediction after adapting to those points. "
        "Good predictions follow the grey curve also away from the dots."
    )


def on_compared_scores(runs: list[LoadedRun]) -> str:
    text = f"Score on tasks never trained on, with 95 % intervals; {better(runs[0].result)}."
    return f"{text} {best_of(runs)}".strip()


def on_compared_adaptation(direction: str) -> str:
    return (
        f"Score of adapting all modules against steps; {direction}. The mark on each curve is the number of steps that "
        "training looks ahead. Curves that turn after it overfit."
    )


def on_compared_variances(runs: list[LoadedRun]) -> str:
    learned = [run for run in runs if any(known([m.get("variance")]) for m in run.result.get("modules") or ())]
    text = "How far tasks move each module away from its shared value."
    return f"{text} On marks that lie together the runs agree." if len(learned) > 1 else text


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
    return f"{words.get(compare(end, then, direction(result) > 0) or '', 'moves')} {values}"


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
