"""From the official Omniglot archives to `omniglot28.npz`."""

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from ..runs.errors import UserError
from ..runs.files import write_atomically
from .images import open_image
from .omniglot import DRAWINGS, SIZE
from .progress import Report, silent

HOME = "https://github.com/brendenlake/omniglot/raw/master/python/"
ARCHIVES = {
    "images_background.zip": "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    "images_evaluation.zip": "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
}
"""Name -> sha256."""

COMPLETE = 1623
_EXAMPLE = "images_background/Latin/character01/0694_01.png"
_DRAWING = re.compile(r"(?:^|/)images_(background|evaluation)\w*/([^/]+)/(character\d+)/(\d{4})_(\d{2})\.png$")
_ORIGINAL_SIZE = (105, 105)


class _Character(NamedTuple):
    """Sorts as the characters of `Omniglot` do; `number` (1 to 1623) is the first half of the file names."""

    is_evaluation: bool
    alphabet: str
    name: str
    number: int


def prepare_omniglot(sources: Sequence[Path], path: Path, *, report: Report = silent) -> int:
    """Write all drawings found in `sources` (zips or folders) to `path`; returns the number of characters."""
    drawings = _collect(sources)
    images = np.empty((len(drawings), DRAWINGS, SIZE, SIZE), np.uint8)
    for row, files in enumerate(drawings.values()):
        for column, (name, data) in enumerate(files):
            images[row, column] = shrink_drawing(data, name)
        report((row + 1) * DRAWINGS, len(drawings) * DRAWINGS)
    arrays = {
        "images": images,
        "alphabet": np.array([character.alphabet for character in drawings]),
        "character": np.array([character.name for character in drawings]),
        "is_background": np.array([not character.is_evaluation for character in drawings]),
        "char_id": np.array([character.number for character in drawings], np.int32),
    }
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
    return len(drawings)


def shrink_drawing(data: bytes, name: str) -> UInt8[np.ndarray, "28 28"]:
    """A 105x105 PNG as 28x28 with ink at 255.

    A small pixel is the mean of the large ones whose centres it covers (Pillow's box filter): 3 or 4 in each direction,
    where the exact area would count those on the border in part.
    """
    from PIL import Image, ImageOps

    image = open_image(data, name, "L")
    if image.size != _ORIGINAL_SIZE:
        raise UserError(f"{name} has {image.width}x{image.height} pixels; Omniglot's drawings have 105x105.")
    return np.asarray(ImageOps.invert(image).resize((SIZE, SIZE), Image.Resampling.BOX))


def _collect(sources: Sequence[Path]) -> dict[_Character, list[tuple[str, bytes]]]:
    """The files of every character in order, each character complete."""
    found: dict[_Character, dict[int, tuple[str, bytes]]] = {}
    for source in sources:
        before = len(found)
        for name, data in _read(source):
            match = _DRAWING.search(name)
            if match is None:
                continue
            part, alphabet, character, number, drawing = match.groups()
            files = found.setdefault(_Character(part == "evaluation", alphabet, character, int(number)), {})
            if int(drawing) in files:
                raise UserError(f"{name} is the same drawing as {files[int(drawing)][0]}; name each set once.")
            files[int(drawing)] = (name, data)
        if len(found) == before:
            raise UserError(f"{source} holds no drawing such as {_EXAMPLE}; name the two zips or the folders in them.")
    for character, files in found.items():
        if sorted(files) != list(range(1, DRAWINGS + 1)):
            raise UserError(
                f"{character.alphabet}/{character.name} has {len(files)} drawings, not 20; get the archive again."
            )
    return {character: [file for _, file in sorted(found[character].items())] for character in sorted(found)}


def _read(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and contents of every PNG in a zip or a folder."""
    if source.is_dir():
        for path in source.absolute().rglob("*.png"):
            yield path.as_posix(), path.read_bytes()
        return
    if not source.is_file():
        raise UserError(f"There is no {source}; name a zip of drawings or the folder it was extracted to.")
    try:
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                if name.endswith(".png"):
                    yield name, archive.read(name)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{source} is not a readable zip ({error}); get it again.") from error
