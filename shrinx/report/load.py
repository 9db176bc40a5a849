"""Reading the folder of a finished run."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..runs.errors import UserError
from ..runs.folder import FORMAT, read_json, read_metrics
from ..runs.names import method_name
from .numbers import clean, has_prior, have_parted
from .schema import CONFIG, RESULT, ROW, mismatch, uneven
from .voices import Measures, Voices, load_measures, load_voices


@dataclass(frozen=True)
class LoadedRun:
    """What a finished run's folder says. The files' shapes have been checked; absent parts are empty."""

    name: str
    """The folder's own name, without the path to it: a page must read the same wherever it was made."""
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any]
    voices: Voices | None = None
    """What a speech run has said."""
    measures: Measures = field(default_factory=dict)
    """How that was judged."""
    title: str = ""
    """What figures call it, if not by its name: its method, where it is the only one of it."""

    @property
    def label(self) -> str:
        return self.title or self.name

    @property
    def experiment(self) -> str:
        return clean(self.config["experiment"])

    @property
    def algorithm(self) -> str:
        return clean(self.config.get("algorithm") or "")

    @property
    def seeds(self) -> int:
        return self.config.get("seeds") or 1


def load_run(path: Path) -> LoadedRun:
    """Read a finished run. Raises `UserError` with one sentence for a folder that is none."""
    if not path.exists():
        raise UserError(f"{path} does not exist; name the folder of a finished run.")
    if not path.is_dir():
        raise UserError(f"{path} is a file; name the folder of a finished run.")
    if not (path / "config.json").exists():
        raise UserError(f"{path} holds no run (it has no config.json); name the folder of a finished run.")
    config = _checked(path / "config.json", CONFIG)
    if config["format"] != FORMAT:
        raise UserError(
            f"{path} has run format {config['format']}, this version reads {FORMAT}; use the version that made it."
        )
    if not (path / "result.json").exists():
        raise UserError(f"{path} holds a run that is not finished; go on with it (--resume) before reporting it.")
    result = _checked(path / "result.json", RESULT)
    problem = uneven(result)
    if problem is not None:
        raise _corrupt(path / "result.json", problem)
    environment = path / "environment.json"
    return LoadedRun(
        name=clean(path.resolve().name),
        config=config,
        environment=read_json(environment) if environment.exists() else {},
        metrics=_metrics(path),
        result=_without_chance(result),
        voices=load_voices(path),
        measures=load_measures(path),
    )


def load_runs(paths: list[Path]) -> list[LoadedRun]:
    """Read several runs; those whose folders have the same name are numbered."""
    places = [path.resolve() for path in paths]
    twice = [path for index, path in enumerate(paths) if places[index] in places[:index]]
    if twice:
        raise UserError(f"{twice[0]} is named twice; name every run once.")
    runs = [load_run(path) for path in paths]
    names = [run.name for run in runs]
    numbered = [
        run if names.count(run.name) == 1 else replace(run, name=f"{run.name} ({names[: index + 1].count(run.name)})")
        for index, run in enumerate(runs)
    ]
    return [replace(run, title=title) for run, title in zip(numbered, _titles(numbered), strict=True)]


def _titles(runs: list[LoadedRun]) -> list[str]:
    """Methods, where runs differ in nothing else that has a name."""
    algorithms = [run.algorithm for run in runs]
    told = len({run.experiment for run in runs}) == 1 and len({*algorithms}) == len(runs) and all(algorithms)
    return [method_name(algorithm) if told else "" for algorithm in algorithms]


def _metrics(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        rows = read_metrics(path)
    except (OSError, ValueError) as error:
        raise _corrupt(path / "metrics.jsonl", str(error)) from error
    for row in rows:
        problem = mismatch(row, ROW)
        if problem is not None:
            raise _corrupt(path / "metrics.jsonl", problem)
    return tuple(rows)


def _without_chance(result: dict[str, Any]) -> dict[str, Any]:
    """Where variances have not parted, chance has chosen between modules: no figure or table is to repeat it."""
    modules = result.get("modules") or []
    if have_parted(modules) or not has_prior(modules) or len(modules) == 1:
        return result

    def without(part: Any, label: str) -> Any:
        return part and {key: value for key, value in part.items() if key != label}

    curves = result.get("curves")
    return {
        **without(result, "fraction"),
        "modules": [without(module, "selected") for module in modules],
        "test": without(result.get("test"), "selected"),
        "curves": curves and {**curves, "series": without(curves.get("series"), "selected")},
    }


def _checked(path: Path, shape: Any) -> dict[str, Any]:
    value = read_json(path)
    problem = mismatch(value, shape)
    if problem is not None:
        raise _corrupt(path, problem)
    return value


def _corrupt(path: Path, problem: str) -> UserError:
    return UserError(f"{path} is not what a run writes ({clean(problem)}); run the experiment again in a new folder.")
