"""Training in compiled chunks with checkpoints between them, until the end or an interruption.

All randomness must be a function of seed and step, and a chunk always starts at a multiple of its length: a run that
was interrupted then repeats exactly what the uninterrupted one would have done.
"""

import errno
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from rich.console import Console

from . import checkpoint
from .errors import UserError
from .folder import RunFolder, read_metrics
from .progress import meter
from .trackers import Tracker

CHECKPOINT_SECONDS = 10.0

State = TypeVar("State")
Advance: TypeAlias = Callable[[State, int, int], tuple[State, dict[str, Any], str]]
"""`advance(state, step, length)` goes `length` steps from `step` and returns the new state, what to log and a note for
the progress line."""


def train_in_chunks(
    folder: RunFolder,
    state: State,
    advance: Advance[State],
    *,
    num_steps: int,
    chunk: int,
    on_save: Callable[[int, State], Any] | None = None,
    console: Console | None = None,
    trackers: tuple[Tracker, ...] = (),
) -> tuple[State, float]:
    """Advance `state` to `num_steps`, from the newest checkpoint if there is one.

    **Arguments:** `folder`, of the run; `state`, a pytree of arrays, the first; `advance`, see `Advance`;
    `on_save(step, state)` is called beside every checkpoint.

    **Returns:** the last state, and the seconds all pieces took together. Ctrl-C and SIGTERM leave a checkpoint.
    """

    def save() -> None:
        checkpoint.save(folder.checkpoints, step, state)
        if on_save is not None:
            on_save(step, state)

    step = 0
    restored = checkpoint.restore(folder.checkpoints, state)
    if restored is not None:
        step, state = restored
    folder.rewind_log(step)
    earlier = read_metrics(folder.path)
    before = earlier[-1]["seconds"] if earlier else 0.0
    started = saved = time.monotonic()
    with meter(num_steps, step, console) as progress, _terminated_like_interrupted():
        try:
            while step < num_steps:
                length = min(chunk, num_steps - step)
                new_state, measured, note = advance(state, step, length)
                row = {"step": step + length, "seconds": round(before + time.monotonic() - started, 3), **measured}
                folder.log(row)  # First: rows beyond a checkpoint are taken back, missing ones would be lost.
                state, step = new_state, step + length
                for tracker in trackers:
                    tracker.log(row)
                progress.advance(step, note)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    save()
                    saved = time.monotonic()
            save()
        except KeyboardInterrupt:
            save()
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(f"No space left for {folder.path}: make room, then go on with --resume.") from error
    return state, before + time.monotonic() - started


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """While inside, SIGTERM ends a run as Ctrl-C does: with a checkpoint."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # Signals can be handled in the main thread only.
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
