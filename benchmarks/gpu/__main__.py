"""Measure the inner step of augmented Omniglot, its gradient and a product with the Hessian on this machine's GPU.

python -m benchmarks.gpu --out results/bench

Every library has a process of its own for every case. All are started at once, since most of the time is compilation;
then they take turns, so that one of them at a time uses the GPU.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from .driver import Row, Worker, take_turns
from .job import CASES, Job
from .libraries import LIBRARIES

SIZES = ("tasks", "images", "steps", "filters")


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    job = replace(Job(), **{name: getattr(options, name) for name in SIZES})
    options.out.mkdir(parents=True, exist_ok=True)

    def write(rows: list[Row]) -> None:
        text = json.dumps({"job": asdict(job), "rows": rows}, indent=1)
        (options.out / "gpu.json").write_text(text + "\n")

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        workers = [
            Worker.start(
                options.torch_python if LIBRARIES[library].module == "with_torch" else sys.executable,
                library,
                case,
                job,
                seconds=options.seconds,
                cache=Path(cache),
            )
            for case in options.cases
            for library in options.libraries
        ]
        end = started + options.limit
        try:
            # A third of the time is for measuring.
            rows = take_turns(workers, repeats=options.repeats, ready_by=end - options.limit / 3, end=end, write=write)
        finally:
            for worker in workers:
                worker.end()
    for row in rows:
        said = (
            row.get("missing") or f"{row['ms']:.4g} ms a step{'' if row['agrees'] else ', but computes another thing'}"
        )
        print(f"{row['case']}, {row['library']}: {said}")
    return 0


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder of gpu.json, written after every turn")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--repeats", type=int, default=7, help="turns")
    parser.add_argument("--seconds", type=float, default=0.2, help="the least a measurement takes")
    parser.add_argument("--limit", type=float, default=165.0, help="seconds in all; what is not ready is left out")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int, default=getattr(Job, name))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
