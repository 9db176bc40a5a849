"""One library at one case, in a process of its own: JSON lines in, JSON lines out.

It first says what preparing and the first call took and what it computed. Then every line on its standard input is
answered with a measurement, and the end of the input with the end.

python -m benchmarks.gpu.worker LIBRARY CASE JOB SECONDS
"""

import importlib
import json
import os
import resource
import sys
import time

from .job import Job
from .libraries import LIBRARIES


def main(library: str, case: str, job: Job, seconds: float) -> None:
    # What libraries print must not get between the lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    wall, cpu = time.perf_counter(), time.process_time()
    module = importlib.import_module(f"benchmarks.gpu.{LIBRARIES[library].module}")
    check, run = module.prepare(job, case, LIBRARIES[library].variant)
    run()
    first = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    print(
        json.dumps({"version": module.VERSION, "device": module.device(), "check": check, **first}),
        file=answers,
        flush=True,
    )
    for _ in sys.stdin:
        run()  # So that the clock of the GPU is up.
        count, wall, cpu = 0, time.perf_counter(), time.process_time()
        while count == 0 or time.perf_counter() - wall < seconds:
            run()
            count += 1
        measured = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        peak = module.peak_mb() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps({"steps": count * job.steps, "peak_mb": peak, **measured}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Job.read(sys.argv[3]), float(sys.argv[4]))
