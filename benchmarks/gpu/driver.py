"""Start a process for every library and case, wait until they are ready, and let them take turns."""

import json
import math
import os
import queue
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .job import TOLERANCES, Job

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    library: str
    case: str
    process: subprocess.Popen
    answers: "queue.Queue[str]"
    """Lines of its output, then an empty one."""
    complaints: Path
    """What it writes to its standard error."""
    said: list[Row] = field(default_factory=list)
    """What it first found, then its measurements."""

    @staticmethod
    def start(python: str, library: str, case: str, job: Job, *, seconds: float, cache: Path) -> "Worker":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            # Each takes the memory it needs, lest the first one takes all.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            # Nothing has been compiled before: the first call is part of the result.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / f"{library}-{case}"),
            "TRITON_CACHE_DIR": str(cache / f"{library}-{case}-triton"),
            # Many compile at once.
            "TORCHINDUCTOR_COMPILE_THREADS": "2",
        }
        complaints = cache / f"{library}-{case}.txt"
        with complaints.open("w") as errors:
            process = subprocess.Popen(
                [python, "-m", "benchmarks.gpu.worker", library, case, job.write(), str(seconds)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # So that compilers it starts can be ended with it.
            )
        answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_collect, args=(process, answers), daemon=True).start()
        return Worker(library, case, process, answers, complaints)

    def listen(self, deadline: float) -> bool:
        """Whether an answer came in time; if not, the process is ended."""
        with suppress(queue.Empty):
            if line := self.answers.get(timeout=max(0.0, deadline - time.monotonic())):
                self.said.append(json.loads(line))
                return True
        self.end()
        return False

    def measure(self, deadline: float) -> bool:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            print("measure", file=self.process.stdin, flush=True)
        return self.listen(deadline)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def take_turns(
    workers: Sequence[Worker], *, repeats: int, ready_by: float, end: float, write: Callable[[list[Row]], None]
) -> list[Row]:
    """Rows of all workers, handed to `write` after every turn; those that are not ready, or fail, have a row too."""
    able = [worker for worker in workers if worker.listen(ready_by)]
    rows = make_rows(workers)
    for _ in range(repeats):
        able = [worker for worker in able if time.monotonic() < end and worker.measure(end)]
        rows = make_rows(workers)
        write(rows)
    return rows


def make_rows(workers: Sequence[Worker]) -> list[Row]:
    expected = {worker.case: worker.said[0]["check"] for worker in reversed(workers) if worker.said}
    return [make_row(worker, expected.get(worker.case, [])) for worker in workers]


def make_row(worker: Worker, expected: list[float]) -> Row:
    """Medians of the turns, named as on a CPU: a meta-step of these cases is one step of all tasks.

    `agrees` says whether it computed what the first library of its case did.
    """
    row: Row = {"case": worker.case, "library": worker.library}
    if len(worker.said) < 2:
        return {**row, "missing": worker.complaints.read_text()[-300:] or "not ready in time"}
    first, *measured = worker.said
    wall, cpu = (statistics.median(one[kind] / one["steps"] for one in measured) for kind in ("wall_s", "cpu_s"))
    compared = zip(first["check"], expected, TOLERANCES[worker.case], strict=True)
    return {
        **row,
        "version": first["version"],
        "device": first["device"],
        "ms": _digits(1e3 * wall),
        "meta_steps_per_cpu_s": _digits(1 / cpu),
        "meta_steps_per_s": _digits(1 / wall),
        "peak_mb": round(max(one["peak_mb"] for one in measured)),
        "first_call_s": round(first["wall_s"], 1),
        "first_call_cpu_s": round(first["cpu_s"], 1),
        "check": [_digits(value) for value in first["check"]],
        "agrees": all(math.isclose(value, other, rel_tol=tolerance) for value, other, tolerance in compared),
        "turns": len(measured),
    }


def _collect(process: subprocess.Popen, answers: "queue.Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")


def _digits(value: float, count: int = 4) -> float:
    return float(f"{value:.{count}g}")
