"""A folder that is there as a whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .base import INDEX
from .errors import BankError


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` at the end; refuses if something is there already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise _occupied(path)
    path = path.resolve()  # A link is kept, and the folder it leads to is replaced.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        raise BankError(f"Cannot create {path}: {error.strerror}.") from error
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)  # A private folder stays private.
        try:
            os.replace(temporary, path)
        except OSError as error:
            raise _occupied(path) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _occupied(path: Path) -> BankError:
    if (path / INDEX).exists():
        return BankError(
            f"There is a bank in {path} already; open it with `Bank.open({str(path)!r})`, or name a new folder."
        )
    return BankError(f"{path} is not an empty folder; name a new one for the bank.")
