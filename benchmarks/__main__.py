"""Measure shrinx beside other libraries; write rows, a table and a figure to `results/bench` and the table to the docs.

python -m benchmarks                                       everything (`make bench`)
python -m benchmarks --cases sinusoid-imaml --libraries shrinx jax
"""

import argparse
import json
import sys
from pathlib import Path

from .cases import CASES
from .driver import MismatchError, run_case
from .libraries import LIBRARIES
from .report import PAGE, RESULTS, fill, merge, table, write_report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--repeats", type=int, default=5, help="measurements of every library, in turns")
    parser.add_argument("--seconds", type=float, default=0.5, help="the least a measurement takes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="rows of other cases there are kept")
    options = parser.parse_args(arguments)
    summary = options.out / "summary.json"
    rows = json.loads(summary.read_text()) if summary.exists() else []
    for name in options.cases:
        print(name, file=sys.stderr)
        try:
            found = run_case(CASES[name](), options.libraries, repeats=options.repeats, seconds=options.seconds)
        except MismatchError as error:
            print(error, file=sys.stderr)
            return 1
        for row in found:
            print(f"  {row['library']:12s} {row['meta_steps_per_cpu_s']:10.4g} per CPU-second", file=sys.stderr)
        # After every case, since a later one may fail.
        rows = merge(rows, found)
        write_report(rows, options.out)
    if options.out == RESULTS:
        fill(PAGE, "speed", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
