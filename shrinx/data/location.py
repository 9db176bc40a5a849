"""Where data lives."""

import os
from pathlib import Path

from ..runs.errors import UserError
from ..runs.files import user_cache

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
    return user_cache() / "shrinx"


def find_file(name: str, data_dir: str | Path | None, command: str) -> Path:
    """The data file `name`; if it is missing, an error that names the `command` that gets it."""
    path = data_folder(data_dir) / name
    if not path.is_file():
        raise UserError(f"There is no {path}; get it with `{command}`, or name its folder in {VARIABLE}.")
    return path
