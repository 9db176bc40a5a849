"""Reading image files, by Pillow."""

import io
from typing import Any

from ..runs.errors import UserError


def need_pillow() -> None:
    """Say how to get Pillow where it is missing: before a long download, not after it."""
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError("Preparing images needs Pillow: pip install 'shrinx[images]'.") from error


def open_image(data: bytes, name: str, mode: str) -> Any:
    """The image in the bytes of a file `name` (for errors), as Pillow has it, in `mode` ("L" grey, "RGB" colour)."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data)).convert(mode)
    except UnidentifiedImageError as error:
        problem = "of no known format" if data else "empty"
        raise UserError(f"{name} is not a readable image ({problem}); get it again.") from error
    except Exception as error:  # Pillow raises a dozen different things for a broken file.
        raise UserError(f"{name} is not a readable image ({error}); get it again.") from error
