"""Names of tasks, and the files they are kept in.

A file's name is made of letters and digits of our own choosing, whatever the task is called: it cannot leave the
folder, has a bounded length, and differs for names that a file system might take for one (`Alice` and `alice`).
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from .errors import BankError

LONGEST = 1000
# A name of that length with all its characters escaped, and what stands before it in a file.
_HEAD = 16 * 1024
_WRITTEN = re.compile(rb'"task":("(?:[^"\\]|\\.)*")')


def check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"A task's name must be text, got {name!r}.")
    if not name or len(name) > LONGEST:
        raise BankError(f"A task's name must have between 1 and {LONGEST} characters, got {len(name)}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BankError(f"The task's name {name!r} is not valid Unicode.") from error
    return name


def file_name(name: str) -> str:
    """Something to recognise it by, and a digest.

    >>> file_name("../Alice & Bob")
    'alice-bob.f6bfb999b51319422ce43fdea3ef5551.safetensors'
    """
    readable = re.sub("[^a-z0-9]+", "-", name.lower())[:32].strip("-")
    return f"{readable or 'task'}.{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"


def task_in(path: Path) -> str | None:
    """The task whose file this is, also if the file is damaged; `None` if nothing says so.

    The name is in the file's header and, if it is a plain one, in the file's name. Neither is believed without the
    digest there, which no other name has. An `OSError` if the file cannot be read and its name does not tell.
    """
    plain = path.name.split(".")[0]
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not is_file_of(plain, path):
            raise
        return plain
    written = [match.group(1) for match in _WRITTEN.finditer(head)]
    candidates = [*map(_unescaped, written), plain]
    return next((name for name in candidates if is_file_of(name, path)), None)


def is_file_of(name: Any, path: Path) -> bool:
    """Is this the file's name for the task?"""
    return is_name(name) and file_name(name) == path.name


def is_name(name: Any) -> bool:
    """Can a task be called so?"""
    try:
        check_name(name)
    except (TypeError, BankError):
        return False
    return True


def _unescaped(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
