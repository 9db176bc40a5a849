"""A progress line: rate, time left, current loss, and the variances as a row of bars."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` as one character each, from the lowest to the highest; infinite ones are drawn at the ends.

    More values than `width` are thinned out, keeping the highest of each group.
    """
    values = list(values)
    if len(values) > width:
        size = math.ceil(len(values) / width)
        values = [max(values[start : start + size]) for start in range(0, len(values), size)]
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)

    def bar(value: float) -> str:
        if math.isnan(value):
            return "?"
        share = 0.0 if high == low else (min(max(value, low), high) - low) / (high - low)
        return _BARS[round(share * (len(_BARS) - 1))]

    return "".join(bar(value) for value in values)


class Rate(ProgressColumn):
    """So many a second; `before` is said while there is nothing to count yet."""

    def __init__(self, before: str = "compiling"):
        super().__init__()
        self._before = before

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("" if task.completed else self._before)
        return Text(f"{task.speed:,.0f}/s" if task.speed >= 10 else f"{task.speed:.2g}/s")


class Meter:
    """Shows how far a run has come; `console=None` shows nothing."""

    def __init__(self, progress: Progress | None, total: int, done: int):
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=total, completed=done, note="")

    def advance(self, done: int, note: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)


@contextmanager
def meter(total: int, done: int, console: Console | None) -> Iterator[Meter]:
    if console is None:
        yield Meter(None, total, done)
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Meter(progress, total, done)
