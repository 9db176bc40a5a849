"""Make `results/summary.json` and the tables in README.md and docs/*.md from the runs in `results/`.

python -m tools.summary            write them (`make results`)
python -m tools.summary --check    only say what differs (part of `make check`)
"""

import argparse
import os
import sys
from pathlib import Path

from .documents import fill, find_documents, tables_in
from .errors import SummaryError
from .paper import load_paper
from .rows import as_json, collect
from .runs import load_runs
from .tables import render_all

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Returns the exit code: 0 all is as the runs say, 1 something differs, 2 something cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.summary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything differs")
    check = parser.parse_args(arguments).check
    try:
        wanted = generate(root)
    except SummaryError as error:
        print(error, file=sys.stderr)
        return 2
    problems = differences(root, wanted)
    if check:
        for problem in problems:
            print(f"{problem}; mend it with: make results", file=sys.stderr)
        return 1 if problems else 0
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            _write(path, text)
            print(f"wrote {path.relative_to(root)}")
    return 0


def generate(root: Path) -> dict[Path, str]:
    """What every generated file should hold."""
    results = root / "results"
    runs = load_runs(results)
    rows = collect(runs.values(), load_paper(results / "paper.toml"))
    tables = render_all(results / "tables.toml", runs, rows)
    wanted = {results / "summary.json": as_json(rows)}
    shown: set[str] = set()
    for path in find_documents(root):
        text, where = path.read_text(), str(path.relative_to(root))
        wanted[path] = fill(text, tables, where)
        shown |= tables_in(text, where).keys()
    for name in tables.keys() - shown:
        raise SummaryError(
            f"Table {name!r} of results/tables.toml is shown nowhere: put `<!-- table: {name} -->` and `<!-- end -->` "
            "where it belongs, or remove it."
        )
    return wanted


def differences(root: Path, wanted: dict[Path, str]) -> list[str]:
    """One sentence for each generated part that is not as it should be."""
    found = []
    for path, text in wanted.items():
        where = str(path.relative_to(root))
        if not path.exists():
            found.append(f"{where} is missing")
        elif path.suffix == ".md":
            now, then = tables_in(path.read_text(), where), tables_in(text, where)
            found += [f"{where}: table {name!r} is not what the runs say" for name in then if now[name] != then[name]]
        elif path.read_text() != text:
            found.append(f"{where} is not what the runs say")
    return found


def _write(path: Path, text: str) -> None:
    """Beside it first, then into place: a reader never sees half a file."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


if __name__ == "__main__":
    sys.exit(main())
