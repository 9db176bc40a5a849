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
def bar(label: str, *, in_bytes: bool = False) -> Iterator[Report]:
    """Yields a `Report` that draws a bar on standard error."""
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

    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), *counts, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
