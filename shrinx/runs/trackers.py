"""Metrics to other places as well: TensorBoard, Weights & Biases, MLflow, if they are installed.

A tracker is anything with `log(row)` and `close()`, where a row is a line of `metrics.jsonl`. The one that always runs
is the run folder itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .errors import UserError


@runtime_checkable
class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_tracker(name: str, path: Path, config: dict[str, Any]) -> Tracker:
    """The tracker called `name`, for the run in `path`."""
    if name not in _TRACKERS:
        raise UserError(f"Unknown tracker {name!r}; known: {', '.join(_TRACKERS)}.")
    try:
        return _TRACKERS[name](path, config)
    except ImportError as error:
        package = {"tensorboard": "tensorboardX"}.get(name, name)
        raise UserError(f"The tracker {name!r} needs a package that is not here: pip install {package}.") from error


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


_TRACKERS: dict[str, Callable[[Path, dict[str, Any]], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
}
