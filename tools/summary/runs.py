"""Reading the folder of a finished run."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SummaryError


@dataclass(frozen=True)
class Score:
    """A mean over seeds with the half width of its 95 % interval; NaN where the run wrote null."""

    mean: float
    ci95: float = math.nan
    by_seed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Point:
    """A curve at one step of adaptation."""

    step: int
    mean: float
    ci95: float


@dataclass(frozen=True)
class Curve:
    """Score against steps of adaptation."""

    points: tuple[Point, ...]
    horizon: int | None
    """How many steps meta-training looked ahead."""
    lower_is_better: bool

    @property
    def before(self) -> Point:
        return self.points[0]

    @property
    def last(self) -> Point:
        return self.points[-1]

    @property
    def best(self) -> Point:
        """The first of the best points; those that are not finite do not count."""
        finite = [point for point in self.points if math.isfinite(point.mean)]
        sign = 1 if self.lower_is_better else -1
        return min(finite, key=lambda point: sign * point.mean, default=self.before)

    @property
    def improvement(self) -> float:
        """What adaptation gains at its best."""
        return abs(self.before.mean - self.best.mean)

    @property
    def decline(self) -> float:
        """What is lost again by the last step, as a share of the improvement."""
        return abs(self.last.mean - self.best.mean) / self.improvement if self.improvement else math.nan

    def from_step(self, step: int) -> Point | None:
        """The first recorded point at `step` or after it."""
        return next((point for point in self.points if point.step >= step), None)


@dataclass(frozen=True)
class Condition:
    """One of the conditions that a run has trained side by side."""

    name: str
    """Such as `T=15 K=1`."""
    scores: dict[str, Score]
    """By what adapts: `all`, `selected`, a module's name; `before` is nothing."""
    variances: dict[str, float]
    """Of each module, the geometric mean over seeds."""


@dataclass(frozen=True)
class Run:
    """A finished run. What its `result.json` does not hold is empty here."""

    name: str
    """Its folder under `results/`: `sinusoid/quick-sigma-maml`."""
    experiment: str
    algorithm: str
    preset: str
    settings: dict[str, Any]
    """Every field of its configuration. One from before an option was there lacks it."""
    seeds: int
    command: str
    commit: str | None
    device: str
    date: str
    metric: str
    seconds: float
    scores: dict[str, Score]
    """By condition: `before`, `all`, `selected`, a subset's name, `only MODULE`; other scores by their names."""
    curves: dict[str, Curve]
    """By what adapts: `all`, `selected`, a subset's name, a module's name."""
    curve_steps: int | None
    """Where they end, if not at ten times the steps that are scored."""
    sizes: dict[str, int]
    variances: dict[str, float]
    """Of each module, the geometric mean over seeds."""
    rates: dict[str, float]
    """Of each module, where step sizes are learned."""
    selected: tuple[str, ...]
    conditions: dict[str, Condition]
    """By name. What is said above is then about the one that the run is configured to be about."""
    measures: dict[str, dict[str, Score]]
    """What voices of a speech run were judged by: scores by measure and condition, real speech among them."""
    stops: dict[str, int]
    """Steps of adaptation after which the voices of a speech run speak, by condition."""


def load_runs(results: Path) -> dict[str, Run]:
    """All runs in `results/EXPERIMENT/RUN`, by name. A folder without `config.json` is no run and is passed over."""
    folders = sorted(path.parent for path in results.glob("*/*/config.json"))
    return {run.name: run for run in map(load_run, folders)}


def load_run(folder: Path) -> Run:
    """Read one run. Raises `SummaryError` with one sentence for a folder that does not hold a whole one."""
    config, environment, result = (_read(folder / f"{name}.json") for name in ("config", "environment", "result"))
    judged = folder / "measures.json"
    measures = _read(judged) if judged.exists() else {}
    try:
        run = _parse(folder, config, environment, result, measures)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise SummaryError(f"{folder} is not what `shrinx run` writes ({problem}); run it again.") from error
    if run.experiment != folder.parent.name:
        raise SummaryError(f"{folder} holds a run of {run.experiment!r}; move it to {folder.parent.parent / run.name}.")
    return run


def ratio(values: dict[str, float], above: tuple[str, ...], below: tuple[str, ...]) -> float:
    """The mean of some modules' values over the mean of others'."""
    unknown = [name for name in (*above, *below) if name not in values]
    if unknown:
        raise SummaryError(f"Unknown modules {unknown}; known: {list(values)}.")

    def mean(names: tuple[str, ...]) -> float:
        return math.fsum(values[name] for name in names) / len(names)

    return mean(above) / mean(below) if mean(below) else math.nan


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise SummaryError(f"{path} is missing: finish the run (--resume) or remove its folder.") from None
    except (OSError, ValueError) as error:
        raise SummaryError(f"{path} cannot be read ({error}); take it from the run again.") from error
    if not isinstance(value, dict):
        raise SummaryError(f"{path} holds no JSON object; take it from the run again.")
    return value


def _parse(
    folder: Path,
    config: dict[str, Any],
    environment: dict[str, Any],
    result: dict[str, Any],
    measures: dict[str, Any],
) -> Run:
    metric = result.get("metric") or {}
    modules = result.get("modules") or []
    return Run(
        name=f"{config['experiment']}/{folder.name}",
        experiment=config["experiment"],
        algorithm=config["algorithm"],
        preset=config["preset"],
        settings=config.get("config", {}),
        seeds=int(config["seeds"]),
        command=environment["command"],
        commit=environment["commit"],
        device=environment["device"],
        date=environment["date"],
        metric=metric.get("name", "score"),
        seconds=_number(result.get("seconds")),
        scores=_scores(result.get("test") or {}),
        curves=_curves(result.get("curves"), metric.get("lower_is_better", True)),
        curve_steps=config.get("config", {}).get("curve_steps"),
        sizes={module["name"]: int(module["size"]) for module in modules},
        variances={module["name"]: _number(module["variance"]) for module in modules},
        rates={module["name"]: _number(module["rate"]) for module in result.get("rates") or ()},
        selected=tuple(module["name"] for module in modules if module["selected"]),
        conditions={found.name: found for found in map(_condition, result.get("conditions") or ())},
        measures={
            measure: {_voice(method): _score(score) for method, score in methods.items()}
            for measure, methods in measures.items()
        },
        stops=(result.get("speech") or {}).get("stops") or {},
    )


def _scores(test: dict[str, Any]) -> dict[str, Score]:
    found = {condition: test[condition] for condition in ("before", "all", "selected") if test.get(condition)}
    found |= (test.get("subsets") or {}) | (test.get("also") or {})
    found |= {f"only {name}": score for name, score in (test.get("only") or {}).items()}
    return {condition: _score(score) for condition, score in found.items()}


def _condition(found: dict[str, Any]) -> Condition:
    return Condition(
        name=f"T={found['num_alphabets']} K={found['num_instances']}",
        scores={adapted: _score(score) for adapted, score in found["test"].items()},
        variances={name: _number(value) for name, value in found["variances"].items()},
    )


def _voice(method: str) -> str:
    """The condition that a method's voices were adapted in, as the run's scores name it.

    >>> _voice("selected-80"), _voice("same speaker")
    ('selected, 80 utterances', 'real, same speaker')
    """
    modules, _, count = method.rpartition("-")
    if count.isdecimal():
        return f"{modules}, {count} utterances"
    return method if method == "real" else f"real, {method}"


def _score(score: dict[str, Any]) -> Score:
    # What a mean is over says the run: only seeds can be put beside those of another.
    by_seed = score.get("values") if score.get("over") == "seeds" else None
    return Score(_number(score["mean"]), _number(score.get("ci95")), tuple(map(_number, by_seed or ())))


def _curves(curves: dict[str, Any] | None, lower_is_better: bool) -> dict[str, Curve]:
    if not curves:
        return {}
    steps = curves["steps"]

    def curve(series: dict[str, Any]) -> Curve:
        widths = series.get("ci95") or [None] * len(steps)
        points = zip(steps, map(_number, series["mean"]), map(_number, widths), strict=True)
        return Curve(tuple(Point(*point) for point in points), curves.get("horizon"), lower_is_better)

    return {label: curve(series) for label, series in curves["series"].items()}


def _number(value: Any) -> float:
    """A float; NaN for null."""
    return math.nan if value is None else float(value)
