"""One library at one case, in a process and an environment of its own: JSON lines in, JSON lines out.

It first says what its first pass took and which losses it found. Then every line on its standard input is answered
with a measurement, and the end of the input with the end.

python -m benchmarks.worker LIBRARY CASE SECONDS
"""

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .cases import CASES
from .libraries import LIBRARIES


def main(library: str, name: str, seconds: float) -> None:
    # What libraries print must not get between the lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    case = CASES[name]()
    wall, cpu = time.perf_counter(), time.process_time()
    with one_core():
        module = importlib.import_module(f"benchmarks.libraries.{LIBRARIES[library].module}")
        device = module.device()
    advance = module.ALGORITHMS[case.algorithm](case)
    losses = [float(loss) for loss in advance()]
    answer(
        version=module.VERSION,
        device=device,
        losses=losses,
        wall_s=time.perf_counter() - wall,
        cpu_s=time.process_time() - cpu,
    )
    for _ in sys.stdin:
        count, wall, cpu = 0, time.perf_counter(), time.process_time()
        while count == 0 or time.process_time() - cpu < seconds:
            advance()
            count += 1
        answer(
            meta_steps=count * len(case.batches),
            wall_s=time.perf_counter() - wall,
            cpu_s=time.process_time() - cpu,
            peak_mb=peak_bytes() / 1e6,
        )


@contextmanager
def one_core() -> Iterator[None]:
    """Libraries that start in here see one core and make one thread: how well each uses many is another question.

    Afterwards the process may run on any core again, lest it waits for one that is busy.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It may have ended meanwhile.
            os.sched_setaffinity(int(thread), cores)


def peak_bytes() -> int:
    """The most memory that this process has had so far."""
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    # On Linux `getrusage` also counts what the process was before it began its program: its parent.
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
