"""A progress line: rate, time left, current loss, and the variances as a row of bars."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

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
        return Text(_rate(task.speed))


class Meter:
    """Shows how far a run has come; by itself it shows nothing."""

    def advance(self, done: int, note: str) -> None:
        del done, note


class _Bar(Meter):
    def __init__(self, progress: Progress, total: int, done: int):
        self._progress = progress
        self._task = progress.add_task("", total=total, completed=done, note="")

    def advance(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)


class _Lines(Meter):
    """For a log: a line at the first sign of life, every so often, and at the end."""

    def __init__(self, console: Console, total: int, done: int, *, every: float, clock: Callable[[], float]):
        self._console, self._total, self._every, self._clock = console, total, every, clock
        self._first, self._started, self._said = done, 0.0, None

    def advance(self, done: int, note: str) -> None:
        now = self._clock()
        if self._said is None:  # What was compiled until now tells nothing of the time left.
            self._first, self._started = done, now
        elif now - self._said < self._every and done < self._total:
            return
        self._said = now
        elapsed, made = now - self._started, done - self._first
        words = [f"{done}/{self._total}"]
        if elapsed > 0 and made > 0:
            left = timedelta(seconds=round((self._total - done) * elapsed / made))
            words += [_rate(made / elapsed), f"{left} left"]
        self._console.print(" ".join([*words, note]), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def meter(
    total: int,
    done: int,
    console: Console | None,
    *,
    every: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Meter]:
    """A bar on a terminal, a line every so many seconds in a file or pipe, nothing without a console."""
    if console is None:
        yield Meter()
    elif not console.is_terminal:
        yield _Lines(console, total, done, every=every, clock=clock)
    else:
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as progress:
            yield _Bar(progress, total, done)


def _rate(speed: float) -> str:
    return f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.2g}/s"
