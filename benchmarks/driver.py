"""Run the libraries of a case in turns, so that whatever else the machine does slows all of them alike."""

import json
import math
import os
import statistics
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .case import Case
from .environments import python_of
from .libraries import LIBRARIES

ROOT = Path(__file__).parents[1]


class MismatchError(Exception):
    """Two libraries did not compute the same."""


@dataclass(frozen=True)
class Worker:
    library: str
    process: subprocess.Popen
    first: dict[str, Any]

    @staticmethod
    def start(library: str, case: Case, seconds: float) -> "Worker":
        """Start the process and wait for its first pass."""
        command = [
            python_of(LIBRARIES[library].environment),
            "-m",
            "benchmarks.worker",
            library,
            case.name,
            str(seconds),
        ]
        # What a compiler has cached would not be measured as the first call.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHRINX_CACHE": "off"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return Worker(library, process, _answer(library, process))

    def measure(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        print("measure", file=self.process.stdin, flush=True)
        return _answer(self.library, self.process)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def run_case(case: Case, libraries: Sequence[str], *, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """One row per library that has the algorithm. Raises `MismatchError` if their first losses differ."""
    able = [library for library in libraries if case.algorithm in LIBRARIES[library].algorithms]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker.start(library, case, seconds)) for library in able]
        check_losses(case, {worker.library: worker.first["losses"] for worker in workers})
        measured: dict[str, list[dict[str, Any]]] = {library: [] for library in able}
        for _ in range(repeats):
            for worker in workers:
                measured[worker.library].append(worker.measure())
    return [make_row(case, worker.library, worker.first, measured[worker.library]) for worker in workers]


def check_losses(case: Case, losses: dict[str, list[float]]) -> None:
    """The first loss of every library must be that of the first one."""
    reference, expected = next((library, values[0]) for library, values in losses.items())
    for library, (value, *_) in losses.items():
        if not math.isclose(value, expected, rel_tol=case.tolerance):
            raise MismatchError(
                f"{case.name}: the first loss is {value:.6g} with {library}, {expected:.6g} with {reference}."
            )


def make_row(case: Case, library: str, first: dict[str, Any], measured: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of the measurements. The first call is what the first pass, with imports, took beyond a later one."""
    cpu, wall = (statistics.median(one[kind] / one["meta_steps"] for one in measured) for kind in ("cpu_s", "wall_s"))
    return {
        "case": case.name,
        "library": library,
        "version": first["version"],
        "device": first["device"],
        "meta_steps_per_cpu_s": _digits(1 / cpu),
        "meta_steps_per_s": _digits(1 / wall),
        "peak_mb": round(max(one["peak_mb"] for one in measured)),
        "first_call_s": round(max(0.0, first["wall_s"] - wall * len(case.batches)), 2),
        "first_call_cpu_s": round(max(0.0, first["cpu_s"] - cpu * len(case.batches)), 2),
        "first_loss": _digits(first["losses"][0], 6),
        "last_loss": _digits(first["losses"][-1], 6),
    }


def _answer(library: str, process: subprocess.Popen) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"The worker of {library} ended with exit code {process.wait()}; its output is above.")
    return json.loads(line)


def _digits(value: float, count: int = 4) -> float:
    return float(f"{value:.{count}g}")
