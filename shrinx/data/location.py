"""Where data lives."""

import os
import shlex
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
    folder = data_folder(data_dir)
    if folder.is_file():
        raise UserError(f"{folder} is a file; name the folder that {name} is in.")
    path = folder / name
    if not path.is_file():
        otherwise = f"name its folder in {VARIABLE}" if data_dir is None else "name another folder with --data-dir"
        raise UserError(f"There is no {path}; get it with `{for_folder(command, data_dir)}`, or {otherwise}.")
    return path


def for_folder(command: str, data_dir: str | Path | None) -> str:
    """The command, so that it is about the data in `data_dir`.

    >>> print(for_folder("shrinx data fetch omniglot", "my images"))
    shrinx data fetch omniglot --data-dir 'my images'
    """
    return command if data_dir is None else f"{command} --data-dir {shlex.quote(str(data_dir))}"
