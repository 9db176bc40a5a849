"""Omniglot: 20 drawings of each of 1623 characters from 50 alphabets, 28x28."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Shaped, UInt8

from ..runs.errors import UserError
from .location import find_file, for_folder

FILE = "omniglot28.npz"
COMMAND = "shrinx data fetch omniglot"
DRAWINGS = 20
SIZE = 28


@dataclass(frozen=True)
class Omniglot:
    """All drawings, characters sorted by set (background first), alphabet and number.

    **Attributes:**

    - `images`: 0 is paper, 255 is ink; the second axis is the drawing, 01 to 20 in the original file names.
    - `alphabet`, `character`: the names of each character's folders, such as `Latin` and `character01`.
    - `is_background`: whether it comes from the original's background set (964 characters in 30 alphabets) or from
      its evaluation set (659 in 20).
    """

    images: UInt8[np.ndarray, "characters 20 28 28"]
    alphabet: Shaped[np.ndarray, " characters"]
    character: Shaped[np.ndarray, " characters"]
    is_background: Bool[np.ndarray, " characters"]


def load_omniglot(data_dir: str | Path | None = None) -> Omniglot:
    """Read `omniglot28.npz` from `data_dir`, or from where data lives by default (see `data_folder`).

    **Arguments:**

    - `data_dir`: a folder; `$SHRINX_DATA` or the user's cache directory if not given.

    **Returns:**

    An `Omniglot`. A missing or foreign file is a `UserError` that says what to do.
    """
    path = find_file(FILE, data_dir, COMMAND)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ("images", "alphabet", "character", "is_background")}
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken or foreign file.
        raise _foreign(path, str(error) or type(error).__name__) from error
    count = len(arrays["images"]) if arrays["images"].ndim else 0
    expected = {
        "images": (np.uint8, (count, DRAWINGS, SIZE, SIZE)),
        "alphabet": (np.str_, (count,)),
        "character": (np.str_, (count,)),
        "is_background": (np.bool_, (count,)),
    }
    for name, (kind, shape) in expected.items():
        array = arrays[name]
        if not np.issubdtype(array.dtype, kind) or array.shape != shape:
            raise _foreign(path, f"`{name}` is {array.dtype}{list(array.shape)}")
    return Omniglot(**arrays)


def _foreign(path: Path, reason: str) -> UserError:
    command = for_folder(f"{COMMAND} --replace", path.parent)
    return UserError(f"{path} is damaged or not Omniglot ({reason}); write it anew with `{command}`.")
