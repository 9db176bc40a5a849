"""Where data lives."""

import os
from pathlib import Path

from ..runs.errors import UserError

VARIABLE = "SHRINX_DATA"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """`data_dir` if given, else the folder `$SHRINX_DATA` names, else `shrinx` in the user's cache directory.

    >>> data_folder("images")
    PosixPath('images')
    """
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks for a relative path to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "shrinx"


def find_file(name: str, data_dir: str | Path | None, command: str) -> Path:
    """The data file `name`; if it is missing, an error that names the `command` that gets it."""
    path = data_folder(data_dir) / name
    if not path.is_file():
        raise UserError(f"There is no {path}; get it with `{command}`, or name its folder in {VARIABLE}.")
    return path
