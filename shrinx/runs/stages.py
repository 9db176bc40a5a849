"""Training in compiled chunks with checkpoints between them, until the end or an interruption.

All randomness must be a function of seed and step, and a chunk always starts at a multiple of its length: a run that
was interrupted then repeats exactly what the uninterrupted one would have done.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from rich.console import Console

from . import checkpoint
from .distributed import from_first, notice_loss
from .folder import RunFolder, read_metrics
from .interruption import heed, resumable
from .progress import meter
from .trackers import Tracker
from .watch import LostProcessError

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

    step, state = from_first(checkpoint.restore(folder.checkpoints, state) or (0, state))
    step = int(step)
    folder.rewind_log(step)
    earlier = read_metrics(folder.path)
    before = earlier[-1]["seconds"] if earlier else 0.0
    started = saved = time.monotonic()
    # What has nothing left to do shows no bar.
    with meter(num_steps, step, console if step < num_steps else None) as progress, resumable(folder.path):
        try:
            while step < num_steps:
                length = min(chunk, num_steps - step)
                with notice_loss():
                    new_state, measured, note = advance(state, step, length)
                row = {"step": step + length, "seconds": round(before + time.monotonic() - started, 3), **measured}
                folder.log(row)  # First: rows beyond a checkpoint are taken back, missing ones would be lost.
                state, step = new_state, step + length
                for tracker in trackers:
                    tracker.log(row)
                progress.advance(step, note)
                heed()
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    save()
                    saved = time.monotonic()
            save()
        except (KeyboardInterrupt, LostProcessError):
            save()
            raise
    return state, before + time.monotonic() - started
