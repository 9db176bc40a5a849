"""Being told to stop, and having no room left: a run can be gone on with after both."""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError


@contextmanager
def resumable(path: Path) -> Iterator[None]:
    """While inside, SIGTERM is a `KeyboardInterrupt`, as Ctrl-C is, and a full disk is one sentence about `path`."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # Signals can be handled in the main thread only.
        before = None
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"No space left for {path}: make room, then call it again (a run: with --resume).") from error
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
