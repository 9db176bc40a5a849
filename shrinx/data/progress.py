"""A bar for what takes a while: rate and time left, in bytes or in pieces."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int | None], None]
"""Told how much is done, and of how much in all if that is known."""


def silent(done: int, total: int | None) -> None:
    """A report that nobody reads."""


@contextmanager
def no_bar(label: str) -> Iterator[Report]:
    yield silent


@contextmanager
def bar(label: str, *, in_bytes: bool = False, before: str = "") -> Iterator[Report]:
    """Yields a `Report` that draws a bar on standard error; `before` stands for the rate until there is one."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from ..runs.progress import Rate

    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), Rate(before))
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), *counts, TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task(label, total=None)

    def report(done: int, total: int | None) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        # What fails before anything is done gets its sentence and no bar.
        if progress.live.is_started:
            progress.stop()
