"""Names of tasks, and the files they are kept in.

A file's name is made of letters and digits of our own choosing, whatever the task is called: it cannot leave the
folder, has a bounded length, and differs for names that a file system might take for one (`Alice` and `alice`).
"""

import hashlib
import re
from typing import Any

from .errors import BankError

LONGEST = 1000


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
