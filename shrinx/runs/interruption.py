"""Being told to stop, and having no room left: a run can be gone on with after both."""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError

_asked = False
"""Somebody wants us to stop. No `threading.Event`: a second signal would wait for the lock that the first has taken."""

_depth = 0
"""How many `terminable` are around us. Only the outermost forgets that it was asked."""


def heed() -> None:
    """To be called in loops: a `KeyboardInterrupt` does not always come through.

    Python raises it wherever it is. That may be a callback, such as JAX's at every garbage collection, whose exceptions
    are printed and forgotten.
    """
    if _asked:
        raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """While inside, SIGTERM is a `KeyboardInterrupt`, as Ctrl-C is; neither is lost, see `heed`."""

    global _asked, _depth

    def interrupt(number: int, frame: Any) -> None:
        global _asked
        _asked = True
        raise KeyboardInterrupt

    # Ctrl-C is left to whoever else handles it, and what runs in the background ignores it.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT) if ours else (signal.SIGTERM,):
            before[number] = signal.signal(number, interrupt)
    except ValueError:  # Signals can be handled in the main thread only.
        pass
    _depth += 1
    try:
        yield
        heed()
    except KeyboardInterrupt:
        _asked = False  # It has come through: whoever catches it need not hear of it again.
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _depth -= 1
        _asked = _asked and _depth > 0


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """The same, and a full disk is one sentence about `path`."""
    with terminable():
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(
                f"No space left for {path}: make room, then call it again (runs: with --resume)."
            ) from error
