"""Where files go, and how they are written so that a reader never sees half of one."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def user_cache() -> Path:
    """The user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks for a relative path to be ignored.
    return cache if cache.is_absolute() else Path.home() / ".cache"


def write_atomically(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write beside `path`, flush to disk, rename into place: after a crash there is the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
