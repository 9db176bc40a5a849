"""A lock on a folder that the system releases when its holder dies."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .errors import UserError


@contextmanager
def locked(folder: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the folder, alone or with others that share; waits for its turn, or raises `BlockingIOError`."""
    import fcntl  # Of Unix: elsewhere the rest of the library shall still work.

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, or say that another process does. Where a system has no locks, nothing is held."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, wait=False))
        except BlockingIOError:
            raise UserError(f"Another process is at this run, in {folder}: wait for it or stop it.") from None
        except (ImportError, OSError):
            pass
        yield
