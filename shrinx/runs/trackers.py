"""Metrics to other places as well: TensorBoard, Weights & Biases, MLflow, if they are installed.

A tracker is anything with `log(row)` and `close()`, where a row is a line of `metrics.jsonl`. The one that always runs
is the run folder itself.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .errors import UserError


@runtime_checkable
class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def check_tracker(name: str) -> None:
    """Raise `UserError` if there is no such tracker or its package is not installed."""
    if name not in TRACKERS:
        raise UserError(f"Unknown tracker {name!r}; known: {', '.join(TRACKERS)}.")
    package, _ = TRACKERS[name]
    if find_spec(package) is None:
        raise UserError(f"The tracker {name!r} needs a package that is not here: pip install {package}.")


def open_tracker(name: str, path: Path, config: dict[str, Any]) -> Tracker:
    """The tracker called `name`, for the run in `path`."""
    check_tracker(name)
    _, start = TRACKERS[name]
    try:
        return _Guarded(name, start(path, config))
    except Exception as error:  # Each of these packages has exceptions of its own.
        raise UserError(
            f"The tracker {name!r} does not start ({_one_line(error)}): mend that or leave it out, then add --resume."
        ) from error


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """A row as flat numbers: means over seeds, the log-variances one per module."""
    flat = {}
    for name, value in row.items():
        array = np.asarray(value, dtype=np.float64)
        if name == "log_variance":
            flat |= {f"{name}/{index}": float(v) for index, v in enumerate(array.mean(axis=0)) if np.isfinite(v)}
        elif name != "step" and np.isfinite(array).any():
            flat[name] = float(np.nanmean(array))
    return flat


class _Guarded:
    """A tracker that is given up, with a warning, when it fails: a server that is down must not end a run of hours."""

    def __init__(self, name: str, tracker: Tracker):
        self._name = name
        self._tracker: Tracker | None = tracker

    def log(self, row: dict[str, Any]) -> None:
        self._try(lambda tracker: tracker.log(row))

    def close(self) -> None:
        self._try(lambda tracker: tracker.close())

    def _try(self, do: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            do(self._tracker)
        except Exception as error:
            self._tracker = None
            message = f"The tracker {self._name!r} failed ({_one_line(error)}); the run goes on without it."
            warnings.warn(message, stacklevel=3)


class _TensorBoard:
    def __init__(self, path: Path, config: dict[str, Any]):
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

        self._writer = SummaryWriter(str(path / "tensorboard"))
        self._writer.add_text("config", str(config))

    def log(self, row: dict[str, Any]) -> None:
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _WandB:
    def __init__(self, path: Path, config: dict[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run = wandb.init(project="shrinx", name=path.name, dir=str(path), config=config)

    def log(self, row: dict[str, Any]) -> None:
        self._run.log(scalars(row), step=row["step"])

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    def __init__(self, path: Path, config: dict[str, Any]):
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow = mlflow
        mlflow.set_experiment("shrinx")
        mlflow.start_run(run_name=path.name)
        mlflow.log_params(config)

    def log(self, row: dict[str, Any]) -> None:
        self._mlflow.log_metrics(scalars(row), step=row["step"])

    def close(self) -> None:
        self._mlflow.end_run()


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


# Name -> (package, how to start).
TRACKERS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _TensorBoard),
    "wandb": ("wandb", _WandB),
    "mlflow": ("mlflow", _MLflow),
}
