"""miniImageNet: 600 colour images of each of 100 classes of ImageNet, 84x84, in files that are mapped, not read."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..runs.errors import UserError
from .location import find_file, for_folder

SPLITS = ("train", "validation", "test")
NAMES = "miniimagenet.json"
COMMAND = "shrinx data prepare miniimagenet --from FOLDER --splits FOLDER"
SIZE = 84


def file_name(split: str) -> str:
    return f"miniimagenet-{split}.npy"


@dataclass(frozen=True)
class MiniImageNet:
    """The images of the classes of each split, sorted by name, and the `names` of the classes (such as `n01532829`)."""

    train: UInt8[np.ndarray, "train images 84 84 3"]
    validation: UInt8[np.ndarray, "validation images_validation 84 84 3"]
    test: UInt8[np.ndarray, "test images_test 84 84 3"]
    names: dict[str, tuple[str, ...]]


def load_miniimagenet(data_dir: str | Path | None = None) -> MiniImageNet:
    """Map the three files from `data_dir`, or from where data lives by default (see `data_folder`).

    **Arguments:**

    - `data_dir`: a folder; `$SHRINX_DATA` or the user's cache directory if not given.

    **Returns:**

    A `MiniImageNet` whose arrays stay on disk until they are indexed. A missing or foreign file is a `UserError` that
    says what to do.
    """
    path = find_file(NAMES, data_dir, COMMAND)
    try:
        names = {split: tuple(map(str, json.loads(path.read_text())[split])) for split in SPLITS}
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(path, f"{type(error).__name__} {error}") from error
    images = {split: _map(find_file(file_name(split), data_dir, COMMAND), len(names[split])) for split in SPLITS}
    return MiniImageNet(**images, names=names)


def _map(path: Path, classes: int) -> UInt8[np.ndarray, "classes images 84 84 3"]:
    try:
        images = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        raise _foreign(path, str(error)) from error
    if (
        images.dtype != np.uint8
        or images.ndim != 5
        or images.shape[::4] != (classes, 3)
        or images.shape[2:4] != (SIZE, SIZE)
    ):
        raise _foreign(path, f"it holds {images.dtype}{list(images.shape)} for {classes} classes")
    return images


def _foreign(path: Path, reason: str) -> UserError:
    command = for_folder(f"{COMMAND} --replace", path.parent)
    return UserError(f"{path} is damaged or not miniImageNet ({reason}); write it anew with `{command}`.")
