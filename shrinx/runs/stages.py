"""Training in compiled chunks with a checkpoint after each, for experiments too large for several seeds at once.

All randomness must be a function of seed and step, and a chunk always starts at a multiple of its length: a run that
was interrupted then repeats exactly what the uninterrupted one would have done.
"""

import errno
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from rich.console import Console

from . import checkpoint
from .errors import UserError
from .folder import RunFolder, read_metrics
from .meta import CHECKPOINT_SECONDS, _terminate_like_interrupt
from .progress import meter
from .trackers import Tracker

State = TypeVar("State")


def train_in_chunks(
    folder: RunFolder,
    state: State,
    advance: Callable[[State, int, int], tuple[State, dict[str, Any], str]],
    *,
    num_steps: int,
    chunk: int,
    on_save: Callable[[int, State], Any] | None = None,
    console: Console | None = None,
    trackers: tuple[Tracker, ...] = (),
) -> tuple[State, float]:
    """Advance `state` to `num_steps`, from the newest checkpoint if there is one.

    **Arguments:** `folder`, of the run; `state`, a pytree of arrays, the first; `advance(state, step, length)` goes
    `length` steps from `step` and returns the new state, what to log and a note for the progress line;
    `on_save(step, state)` is called beside every checkpoint.

    **Returns:** the last state, and the seconds all pieces took together. Ctrl-C and SIGTERM leave a checkpoint.
    """

    def save() -> None:
        checkpoint.save(folder.checkpoints, step, state)
        if on_save is not None:
            on_save(step, state)

    if jax.process_count() > 1:
        raise UserError("This experiment runs in one process; leave out --coordinator.")
    step = 0
    restored = checkpoint.restore(folder.checkpoints, state)
    if restored is not None:
        step, state = restored
    folder.rewind_log(step)
    earlier = read_metrics(folder.path)
    before = earlier[-1]["seconds"] if earlier else 0.0
    started = saved = time.monotonic()
    with meter(num_steps, step, console) as progress, _terminate_like_interrupt():
        try:
            while step < num_steps:
                length = min(chunk, num_steps - step)
                new_state, measured, note = advance(state, step, length)
                state, step = new_state, step + length
                row = {"step": step, "seconds": round(before + time.monotonic() - started, 3), **measured}
                folder.log(row)
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
