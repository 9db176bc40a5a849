"""Tables in documents: between `<!-- table: NAME -->` and `<!-- end -->`, each on a line of its own."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .errors import SummaryError

_START = re.compile(r"<!-- table: (\S+) -->")
_END = "<!-- end -->"


def find_documents(root: Path) -> list[Path]:
    return [path for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if path.exists()]


def tables_in(text: str, where: str) -> dict[str, str]:
    """What stands between each pair of markers now."""
    return {name: "\n".join(lines).strip() for name, lines in _pieces(text, where) if name is not None}


def fill(text: str, tables: Mapping[str, str], where: str) -> str:
    """`text` with every table replaced. Raises `SummaryError` for one that nobody has declared."""
    filled: list[str] = []
    for name, lines in _pieces(text, where):
        if name is None:
            filled += lines
        elif name in tables:
            # The empty lines keep a Markdown reader from taking the table for part of the comment.
            filled += [f"<!-- table: {name} -->", "", tables[name], "", _END]
        else:
            known = ", ".join(tables) or "none"
            raise SummaryError(
                f"{where} shows table {name!r}, which results/tables.toml does not declare; known: {known}."
            )
    return "\n".join(filled)


def _pieces(text: str, where: str) -> Iterator[tuple[str | None, list[str]]]:
    """The lines of each table with its name, and the lines between tables with none."""
    name: str | None = None
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        start = _START.fullmatch(line)
        if start and name is not None:
            raise SummaryError(f"{where}:{number}: table {name!r} has no `{_END}` before the next one; add it.")
        if line == _END and name is None:
            raise SummaryError(f"{where}:{number}: `{_END}` ends no table; put `<!-- table: NAME -->` above it.")
        if start or line == _END:
            yield name, lines
            name, lines = start[1] if start else None, []
        else:
            lines.append(line)
    if name is not None:
        raise SummaryError(f"{where}: table {name!r} has no `{_END}` after it; add it.")
    yield None, lines
