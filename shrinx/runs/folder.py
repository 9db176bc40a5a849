"""A run's folder: what was asked for, how it went, what came out, and what is needed to repeat it.

config.json      experiment, algorithm, preset, every field of the configuration, seeds
environment.json command line, versions, device, commit, date
metrics.jsonl    one line per chunk of updates
checkpoints/     the newest few states
scores.npz       held-out tasks while they are being scored; gone when the run is finished
result.json      written last: its presence says that the run is finished
figures/*.svg, tables/*.csv, report.html
"""

import json
import os
import platform
import subprocess
import sys
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import shrinx

from .errors import UserError
from .files import write_json, write_text
from .parallel import num_cores

FORMAT = 1


@dataclass(frozen=True)
class Request:
    """What a run is asked to do. Two runs with equal requests give equal results."""

    experiment: str
    algorithm: str
    preset: str
    seeds: int
    config: Any
    """The experiment's own configuration, a frozen dataclass."""

    def as_json(self) -> dict[str, Any]:
        request = {
            "format": FORMAT,
            "version": shrinx.__version__,
            "experiment": self.experiment,
            "algorithm": self.algorithm,
            "preset": self.preset,
            "seeds": self.seeds,
            "config": asdict(self.config),
        }
        return json.loads(json.dumps(request))  # Tuples become lists, as they will when the file is read.


class RunFolder:
    """The folder of one run, opened for writing."""

    def __init__(self, path: Path, request: Request):
        self.path = path
        self.request = request

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def scores(self) -> Path:
        """What is known of held-out tasks before the run is finished."""
        return self.path / "scores.npz"

    @staticmethod
    def open(path: Path, request: Request, *, resume: bool) -> "RunFolder":
        """Start a run in `path`, or go on with it. Refuses a folder that holds anything else."""
        folder = RunFolder(path, request)
        config = path / "config.json"
        if path.is_file():
            raise UserError(f"{path} is a file; name a folder.")
        if not config.exists():
            if path.exists() and any(path.iterdir()):
                raise UserError(f"{path} is not empty and holds no run; name a new folder.")
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"Cannot create {path}: {error.strerror}.") from error
            write_json(config, request.as_json())
            write_json(path / "environment.json", environment())
            return folder
        _check_same(path, read_json(config), request)
        if folder.result.exists():
            raise FinishedError(f"{path} holds this run, finished; nothing was touched. Read {path / 'report.html'}.")
        if not resume:
            raise UserError(
                f"{path} holds this run, half finished: add --resume to go on with it, "
                "or name another folder to start anew."
            )
        return folder

    def log(self, row: dict[str, Any]) -> None:
        """Append a line to `metrics.jsonl`."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rewind_log(self, step: int) -> None:
        """Drop the lines after `step`: their updates are about to be done again."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            kept = [row for row in read_metrics(self.path) if row["step"] <= step]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.result, result)
        self.scores.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Take back what `open` wrote if nothing else has come to it: a run that never began is not half finished."""
        ours = {"config.json", "environment.json"}
        if {file.name for file in self.path.iterdir()} == ours:
            for name in ours:
                (self.path / name).unlink()
            self.path.rmdir()


class FinishedError(UserError):
    """The run asked for is there already. Not a failure."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object.")
    return value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`. A last line cut short by a crash is left out."""
    file = path / "metrics.jsonl"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def environment() -> dict[str, Any]:
    """What is needed to repeat a run."""
    versions = {name: _version(name) for name in ("jax", "jaxlib", "equinox", "optax", "numpy")}
    device = jax.devices()[0]
    return {
        "command": " ".join([_program(Path(sys.argv[0])), *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{device.device_kind} ({device.platform}), {num_cores()} CPU cores",
        "python": platform.python_version(),
        "shrinx": shrinx.__version__,
        **versions,
    }


def _program(called: Path) -> str:
    """The program's name, by `python -m shrinx` as well."""
    return "shrinx" if called == Path(shrinx.__file__).parent / "__main__.py" else called.name


def _check_same(path: Path, found: dict[str, Any], request: Request) -> None:
    asked = request.as_json()
    for key, what in (("experiment", "experiment"), ("format", "run format"), ("version", "shrinx version")):
        if found.get(key) != asked[key]:
            raise UserError(
                f"{path} was made by another {what} ({found.get(key)!r}, this is {asked[key]!r}); name another folder."
            )
    named = ("algorithm", "preset", "seeds")
    before = {**found.get("config", {}), **{key: found.get(key) for key in named}}
    now = {**asked["config"], **{key: asked[key] for key in named}}
    differing = differences(before, now, request.config)
    if differing:
        raise UserError(f"{path} holds a run with other settings ({differing}); name another folder.")


def differences(before: dict[str, Any], now: dict[str, Any], config: Any) -> str:
    """In which settings what was written `before` is not what is asked for `now`, in words; empty if in none.

    What was written before an option was there has its default.
    """
    defaults = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    before = {**json.loads(json.dumps(defaults)), **before}
    return "; ".join(
        f"{key} {before.get(key, 'unknown')} there, {now.get(key, 'unknown')} here"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _commit() -> str | None:
    """The commit of the source tree that runs, with a + if it has been changed; `None` outside git.

    For a copy of the tree on another machine `SHRINX_COMMIT` can say it.
    """
    root = Path(shrinx.__file__).parents[1]
    if "SHRINX_COMMIT" in os.environ or not (root / ".git").exists():
        return os.environ.get("SHRINX_COMMIT")
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
        status = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "") if head.returncode == 0 else None
