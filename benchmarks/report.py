"""What was measured: rows of JSON, a table and a figure. The latter are made of rows, so that old ones do too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from shrinx.report.numbers import short
from shrinx.report.style import BLUE, INK, MUTED, SELECTED, log_axis, new_figure, style
from shrinx.report.svg import to_svg
from shrinx.runs.files import write_text

from .cases import CASES
from .libraries import LIBRARIES

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "bench", ROOT / "docs" / "speed.md"

Row = dict[str, Any]
TITLE = "Meta-steps per CPU-second, shrinx and other libraries"


def merge(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """`old` with the cases of `new` replaced, in the order of the cases and libraries."""
    fresh = {row["case"] for row in new}
    cases, libraries = list(CASES), list(LIBRARIES)
    rows = [row for row in old if row["case"] not in fresh and row["case"] in CASES] + list(new)
    return sorted(rows, key=lambda row: (cases.index(row["case"]), libraries.index(row["library"])))


def write_report(rows: Sequence[Row], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "summary.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / "table.md", table(rows))
    write_text(folder / "speed.svg", to_svg(figure(rows), "bench", TITLE, describe(rows)))


def fill(document: Path, name: str, text: str) -> None:
    """Put `text` between the lines `<!-- bench: NAME -->` and `<!-- bench end -->` of a document."""
    start, end = f"<!-- bench: {name} -->\n", "<!-- bench end -->"
    before, found, rest = document.read_text().partition(start)
    if not found or end not in rest:
        raise ValueError(f"{document} has no lines `{start.strip()}` and `{end}` to put the table between.")
    # The empty lines keep a Markdown reader from taking the table for part of the comment.
    write_text(document, f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}")


def table(rows: Sequence[Row]) -> str:
    """Markdown; the ratio says how many times as many meta-steps shrinx makes in a second of one core."""
    lines = [
        "| case | library | meta-steps / CPU-s | shrinx is | meta-steps / s | peak MB | first call, CPU-s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        own = [other["meta_steps_per_cpu_s"] for other in rows if other["case"] == row["case"] and _is_own(other)]
        ratio = f"{own[0] / row['meta_steps_per_cpu_s']:.3g}×" if own and not _is_own(row) else ""
        speeds = f"{short(row['meta_steps_per_cpu_s'])} | {ratio} | {short(row['meta_steps_per_s'])}"
        lines.append(
            f"| {_title(row)} | {LIBRARIES[row['library']].title} {row['version']} | {speeds} "
            f"| {row['peak_mb']} | {row['first_call_cpu_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


@style()
def figure(rows: Sequence[Row]) -> Figure:
    """A line per case; a dot per library on a logarithmic scale of meta-steps per CPU-second."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    drawn = new_figure(1.0 + 0.42 * len(cases))
    axes = drawn.subplots()
    markers = dict(zip([name for name in LIBRARIES if name != "shrinx"], "sD^vPX", strict=False))
    for name, library in LIBRARIES.items():
        mine = [row for row in rows if row["library"] == name]
        colour = SELECTED if name == "shrinx" else BLUE if library.environment != "torch" else MUTED
        axes.plot(
            [row["meta_steps_per_cpu_s"] for row in mine],
            [cases.index(row["case"]) for row in mine],
            linestyle="",
            marker=markers.get(name, "o"),
            markersize=7 if name == "shrinx" else 4.5,
            color=colour,
            markeredgecolor=INK,
            markeredgewidth=0.3,
            label=library.title,
            zorder=2 if name == "shrinx" else 3,
        )
    speeds = [row["meta_steps_per_cpu_s"] for row in rows]
    log_axis(axes, "x", min(speeds) / 2, max(speeds) * 2)
    axes.set_yticks(range(len(cases)), [CASES[case]().title for case in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlabel("meta-steps per CPU-second")
    drawn.legend(loc="outside upper center", ncols=3)
    return drawn


def describe(rows: Sequence[Row]) -> str:
    return "; ".join(f"{_title(row)}, {row['library']}: {short(row['meta_steps_per_cpu_s'])}" for row in rows)


def _title(row: Row) -> str:
    return CASES[row["case"]]().title


def _is_own(row: Row) -> bool:
    return row["library"] == "shrinx"
