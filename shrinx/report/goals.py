"""What speech runs must show on held-out speakers, what they measured instead, and whether it holds.

A goal is judged by means over test speakers, early-stopped for the baselines and never for σ-Reptile. What cannot be
decided is said to be not measured, with the run or the measure that is missing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..runs.names import method_name
from ..runs.statistics import half_width
from .load import LoadedRun
from .numbers import known, number, numbers, percent, short, with_interval

OURS = "sigma-reptile"
TITLES = {algorithm: method_name(algorithm) for algorithm in (OURS, "reptile", "sea-all", "sea-emb")}
LONGEST = 10_000
"""Steps that a curve must go on for to show that it does not turn upward."""
LOST = 0.01
"""A curve turns upward if it loses more than this share of what adaptation has gained."""

Methods = Mapping[str, LoadedRun]
"""The run of each algorithm."""


@dataclass(frozen=True)
class Goal:
    """One line: what must hold, what was measured, and whether it holds; `None` if that cannot be said."""

    text: str
    measured: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "missed"


def by_seed(runs: Iterable[LoadedRun]) -> dict[int, dict[str, LoadedRun]]:
    """Speech runs that have the same held-out speakers; of several by one algorithm the first."""
    found: dict[int, dict[str, LoadedRun]] = {}
    for run in runs:
        if run.result.get("speech") is not None and run.algorithm in TITLES:
            seed = (run.config.get("config") or {}).get("seed") or 0
            found.setdefault(seed, {}).setdefault(run.algorithm, run)
    return found


def goals(methods: Methods) -> list[Goal]:
    """All goals, judged by these runs; those of half the utterances if a run adapted to several numbers of them."""
    several = len(_sizes(methods)) != 1
    return [goal(methods) for name, goal in GOALS.items() if several or not name.endswith("of half")]


@dataclass(frozen=True)
class _Measured:
    """A mean with its words; NaN, and what to do about it, where it is missing."""

    mean: float
    text: str

    @staticmethod
    def of(score: dict[str, Any] | None, otherwise: str) -> "_Measured":
        mean = number((score or {}).get("mean"))
        return _Measured(mean, otherwise if math.isnan(mean) else with_interval(score))


def _likelihood(methods: Methods, part: int) -> Goal:
    size = _size(methods, part)
    found = {name: _score(methods, name, f"all, {size} utterances") for name in TITLES}
    links = ((OURS, "≤", "reptile"), ("reptile", "≤", "sea-all"), ("sea-all", "<", "sea-emb"))
    return _ordered(f"Negative log-likelihood after adapting to {size} utterances", found, links)


def _early_stopping(methods: Methods, part: int) -> Goal:
    size = _size(methods, part)
    curves = {name: _rise(methods, name, f"all, {size} utterances") for name in (OURS, "reptile", "sea-all")}
    verdicts = [None if rises is None else rises != (name == OURS) for name, (rises, _) in curves.items()]
    return Goal(
        f"{LONGEST:,} steps on {size} utterances: Reptile and SEA-All turn upward, σ-Reptile does not",
        _listed({name: text for name, (_, text) in curves.items()}),
        _all(verdicts),
    )


def _similarity(methods: Methods) -> Goal:
    found = {name: _judged(methods, name, "similarity") for name in TITLES}
    links = ((OURS, ">", "sea-emb"), (OURS, ">", "sea-all"), (OURS, "≥", "reptile"))
    goal = _ordered(f"Similarity to the real speaker, {_size(methods)} utterances", found, links)
    measures = methods[OURS].measures.get("similarity") or {} if OURS in methods else {}
    ceiling = number((measures.get("same speaker") or {}).get("mean"))
    if math.isnan(ceiling) or math.isnan(found[OURS].mean):
        return goal
    distance = f"the real speaker's own {short(ceiling)} is {short(ceiling - found[OURS].mean)} above σ-Reptile"
    return Goal(goal.text, f"{goal.measured}; {distance}", goal.met)


def _naturalness(methods: Methods) -> Goal:
    found = {name: _judged(methods, name, "predicted-mos") for name in (OURS, "reptile")}
    return _ordered(f"Predicted opinion score, {_size(methods)} utterances", found, ((OURS, "≥", "reptile"),))


def _digits(methods: Methods) -> Goal:
    found = _judged(methods, OURS, "digit-accuracy")
    # A mean of shares such as 18 of 20 may fall short of what it stands for by a rounding error.
    met = None if math.isnan(found.mean) else found.mean > 0.9 - 1e-9
    return Goal("σ-Reptile: at least 90 % of the spoken digits are understood", found.text, met)


def _selected(methods: Methods, part: int) -> Goal:
    size = _size(methods, part)
    names = [f"{label}, {size} utterances" for label in ("all", "selected")]
    text = f"σ-Reptile, {size} utterances: the selected modules lose nothing against all, within the interval"
    found = [_score(methods, OURS, name) for name in names]
    missing = [score.text for score in found if math.isnan(score.mean)]
    if missing:
        return Goal(text, missing[0], None)
    run = methods[OURS]
    by_speaker = run.result["speech"].get("scores") or {}
    everything, chosen = (known(by_speaker.get(name)) for name in names)
    if not everything or len(everything) != len(chosen):
        return Goal(text, f"{run.name} does not say what it scored on every speaker", None)
    # Speaker by speaker: what sets the speakers apart must not hide a loss.
    lost = [after - before for before, after in zip(everything, chosen, strict=True)]
    mean, width = math.fsum(lost) / len(lost), half_width(lost) or 0.0
    modules = [bool(module.get("selected")) for module in run.result.get("modules") or ()]
    loss = with_interval({"mean": mean, "ci95": width})
    measured = f"{sum(modules)} of {len(modules)} modules {found[1].text}, all {found[0].text}, loss by speaker {loss}"
    return Goal(text, measured, mean <= width)


def _share(methods: Methods) -> Goal:
    text = "σ-Reptile stores at most 20 % of the parameters per voice"
    if OURS not in methods:
        return Goal(text, _no_run(OURS), None)
    fraction = number(methods[OURS].result.get("fraction"))
    return Goal(text, percent(fraction, 3), None if math.isnan(fraction) else fraction <= 0.2)


GOALS: dict[str, Callable[[Methods], Goal]] = {
    "likelihood": partial(_likelihood, part=1),
    "likelihood of half": partial(_likelihood, part=2),
    "early stopping": partial(_early_stopping, part=1),
    "early stopping of half": partial(_early_stopping, part=2),
    "similarity": _similarity,
    "naturalness": _naturalness,
    "digits": _digits,
    "selected": partial(_selected, part=1),
    "selected of half": partial(_selected, part=2),
    "share": _share,
}


def _size(methods: Methods, part: int = 1) -> int:
    """Utterances adapted to: all there are of a speaker, or a part of them."""
    return max(_sizes(methods), default=80) // part


def _sizes(methods: Methods) -> set[int]:
    series = [name for run in methods.values() for name in (run.result.get("curves") or {}).get("series") or ()]
    counts = [name.removeprefix("all, ").removesuffix(" utterances") for name in series]
    return {int(count) for count in counts if count.isdecimal()}


def _score(methods: Methods, algorithm: str, name: str) -> _Measured:
    """Negative log-likelihood where a method's voices stop."""
    if algorithm not in methods:
        return _Measured(math.nan, _no_run(algorithm))
    run, wanted = methods[algorithm], algorithm != OURS
    if (run.config.get("config") or {}).get("early_stop", wanted) != wanted:
        return _Measured(math.nan, f"{run.name} ran with{'out' * wanted} early stopping")
    score = ((run.result.get("test") or {}).get("subsets") or {}).get(name)
    return _Measured.of(score, f"{run.name} has no score of “{name}”")


def _judged(methods: Methods, algorithm: str, measure: str) -> _Measured:
    if algorithm not in methods:
        return _Measured(math.nan, _no_run(algorithm))
    run = methods[algorithm]
    score = (run.measures.get(measure) or {}).get(f"all-{_size(methods)}")
    return _Measured.of(score, f"run python -m shrinx.measures {run.name} --only {measure}")


def _rise(methods: Methods, algorithm: str, name: str) -> tuple[bool | None, str]:
    """Does the curve turn upward? One that has not by the time it ends too early leaves that open."""
    if algorithm not in methods:
        return None, _no_run(algorithm)
    curves = methods[algorithm].result.get("curves") or {"steps": [], "series": {}}
    means = numbers((curves["series"].get(name) or {}).get("mean"))
    if not known(means[:1]):
        return None, f"{methods[algorithm].name} has no curve of “{name}”"
    last, lowest = means[-1], min(known(means))
    until = f"{curves['steps'][-1]:,}"
    if math.isnan(last):
        return True, f"lowest {short(lowest)}, diverged by step {until}"
    # Four digits: what is lost may be little, and is what this is about.
    text = f"lowest {short(lowest, 4)}, {short(last, 4)} after {until} steps"
    if last - lowest > LOST * (means[0] - lowest):
        return True, text
    return (False, text) if curves["steps"][-1] >= LONGEST else (None, f"{text}, which are too few")


_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "≤": lambda left, right: left <= right,
    "≥": lambda left, right: left >= right,
}


def _ordered(what: str, found: Mapping[str, _Measured], links: Sequence[tuple[str, str, str]]) -> Goal:
    """A goal that is a number of inequalities between methods."""
    words = [f"{TITLES[left]} {relation} {TITLES[right]}" for left, relation, right in links]
    verdicts: list[bool | None] = []
    for left, relation, right in links:
        pair = found[left].mean, found[right].mean
        verdicts.append(None if any(map(math.isnan, pair)) else _RELATIONS[relation](*pair))
    measured = _listed({name: score.text for name, score in found.items()})
    failing = [link for link, verdict in zip(words, verdicts, strict=True) if verdict is False]
    return Goal(
        f"{what}: {', '.join(words)}",
        f"{measured}; not {', not '.join(failing)}" if failing else measured,
        _all(verdicts),
    )


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """One that is missed decides; else one that is open."""
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _listed(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{TITLES[name]}: {text}" for name, text in texts.items())


def _no_run(algorithm: str) -> str:
    return f"no run of {algorithm}"


def goal_table(runs: Sequence[LoadedRun]) -> list[list[Any]]:
    """Seed, goal, verdict and what was measured, for every seed that speech runs were made with."""
    return [
        [seed, goal.text, goal.verdict, goal.measured]
        for seed, methods in by_seed(runs).items()
        for goal in goals(methods)
    ]
