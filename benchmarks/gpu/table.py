"""Put what `python -m benchmarks.gpu` has measured (`results/bench/gpu.json`) as a table into docs/speed.md.

python -m benchmarks.gpu.table
"""

import json
from typing import Any

from shrinx.report.numbers import short

from ..report import PAGE, RESULTS, fill
from .job import CASES
from .libraries import LIBRARIES


def table(rows: list[dict[str, Any]]) -> str:
    """A line per case and library; those that failed or computed another thing are left out."""
    lines = [
        "| case | library | ms | shrinx is | peak MB | first call, s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    sound = [row for row in rows if row.get("agrees")]
    for row in sound:
        own = [other["ms"] for other in sound if (other["case"], other["library"]) == (row["case"], "shrinx")]
        ratio = f"{row['ms'] / own[0]:.3g}×" if own and row["library"] != "shrinx" else ""
        title = f"{LIBRARIES[row['library']].title} {row['version']}"
        numbers = f"{short(row['ms'])} | {ratio} | {row['peak_mb']} | {row['first_call_s']}"
        lines.append(f"| {CASES[row['case']]} | {title} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    fill(PAGE, "gpu", table(json.loads((RESULTS / "gpu.json").read_text())["rows"]))
