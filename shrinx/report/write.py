"""Writing reports: figures, tables and the page, each file whole or not at all."""

from collections.abc import Iterable
from pathlib import Path

from ..runs.errors import UserError
from ..runs.files import write_text
from .gallery import Drawing, comparison_drawings, run_drawings
from .load import load_run, load_runs
from .page import run_page
from .side_by_side import comparison_page
from .tables import comparison_tables, run_tables


def write_report(path: Path) -> Path:
    """Report the finished run in `path`: `figures/*.svg`, `tables/*.csv` and `report.html`, whose path is returned.

    Reads the run's own files only; reporting again gives the same bytes.
    """
    run = load_run(path)
    drawings, tables = run_drawings(run), run_tables(run)
    return _write(path / "report.html", drawings, tables, run_page(run, drawings, tables))


def write_comparison(paths: list[Path], out: Path) -> Path:
    """Compare finished runs. Returns the path of the page.

    If `out` ends in .html it is the page, which needs no other file. Otherwise it is a folder, and gets the same
    kinds of files as the report of one run.
    """
    if len(paths) < 2:
        raise UserError("A comparison needs at least two runs.")
    alone = out.suffix == ".html"
    page = out if alone else out / "report.html"
    if page.is_dir() or (out.is_file() and not alone):
        raise UserError(f"{out} is there already and is no page; name another file or folder for the comparison.")
    if page.name == "report.html" and (page.parent / "config.json").exists():
        raise UserError(f"{page} is the report of a run; name another file or folder for the comparison.")
    runs = load_runs(paths)
    drawings, tables = comparison_drawings(runs), comparison_tables(runs)
    text = comparison_page(runs, drawings, tables)
    return _write(page, (), {}, text) if alone else _write(page, drawings, tables, text)


def _write(page: Path, drawings: Iterable[Drawing], tables: dict[str, str], text: str) -> Path:
    folder = page.parent
    try:
        for drawing in drawings:
            write_text(folder / "figures" / f"{drawing.name}.svg", drawing.svg)
        for name, table in tables.items():
            write_text(folder / "tables" / name, table)
        # Last, so that a page never speaks of files that are not there yet.
        write_text(page, text)
    except OSError as error:
        raise UserError(f"Cannot write {page}: {error.strerror}.") from error
    return page
