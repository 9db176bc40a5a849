"""From folders of JPEGs or the usual pickles to the files of miniImageNet."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ..runs.errors import UserError
from ..runs.files import write_atomically, write_json
from .image_lists import find_images, read_lists
from .images import need_pillow, open_image
from .miniimagenet import NAMES, SIZE, SPLITS, file_name
from .pickles import load_arrays
from .progress import Report, no_bar

Pixels = UInt8[np.ndarray, "84 84 3"]

FEWEST = 2
"""Images of a class: one to adapt to, one to be judged by."""

_CACHES = {
    "train": "mini-imagenet-cache-train.pkl",
    "validation": "mini-imagenet-cache-val.pkl",
    "test": "mini-imagenet-cache-test.pkl",
}


@dataclass(frozen=True)
class _Source:
    """The images of every class of a split, and how to read one."""

    classes: Mapping[str, Sequence[Any]]
    read: Callable[[Any], Pixels]


def prepare_miniimagenet(
    folder: Path,
    splits: Path | None,
    target: Path,
    *,
    bar: Callable[[str], AbstractContextManager[Report]] = no_bar,
) -> dict[str, tuple[int, int]]:
    """Write the three splits to the folder `target`.

    **Arguments:**

    - `folder`: holds the images, or the three pickles `mini-imagenet-cache-{train,val,test}.pkl`.
    - `splits`: holds `train.csv`, `val.csv` and `test.csv`; the pickles need none.
    - `target`: gets one array per split, and a list of class names, written last: its presence says that all is there.
    - `bar`: opens a progress bar with a label.

    **Returns:**

    The number of classes and of images per class of each split.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.")
    open_split = _open_caches(folder, splits) if (folder / _CACHES["train"]).is_file() else _open_folder(folder, splits)
    names: dict[str, list[str]] = {}
    shapes = {}
    target.mkdir(parents=True, exist_ok=True)
    # What is in `target` stays as it is until all is read.
    with TemporaryDirectory(dir=target, prefix=".miniimagenet-") as workplace:
        for split in SPLITS:
            source = open_split(split)
            for other, taken in names.items():
                if both := sorted(set(taken) & set(source.classes)):
                    raise UserError(f"Class {both[0]} is in {other} and in {split}; a class belongs to one split.")
            names[split] = sorted(source.classes)
            with bar(f"miniimagenet {split}") as report:
                shapes[split] = _write(Path(workplace, file_name(split)), source, report)
        (target / NAMES).unlink(missing_ok=True)
        for split in SPLITS:
            os.replace(Path(workplace, file_name(split)), target / file_name(split))
    write_json(target / NAMES, names)
    return shapes


def _write(path: Path, source: _Source, report: Report) -> tuple[int, int]:
    """Write a split image by image: the training images alone take 0.8 GB."""
    sizes = {name: len(images) for name, images in sorted(source.classes.items())}
    count = min(sizes.values())
    smallest = min(sizes, key=sizes.__getitem__)
    if count < FEWEST:
        raise UserError(
            f"Class {smallest} has {count} image{'s' * (count != 1)}; a task needs at least {FEWEST} of every class. "
            "Get the rest, or take the class out of the splits."
        )
    if count < max(sizes.values()):
        warnings.warn(f"{path.name} gets the first {count} images of each class: {smallest} has no more.", stacklevel=3)

    def write(file: Any) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(sizes), count, SIZE, SIZE, 3)}
        np.lib.format.write_array_header_1_0(file, header)
        for row, name in enumerate(sizes):
            for column in range(count):
                file.write(source.read(source.classes[name][column]).tobytes())
                report(row * count + column + 1, len(sizes) * count)

    write_atomically(path, write)
    return len(sizes), count


def _open_folder(folder: Path, splits: Path | None) -> Callable[[str], _Source]:
    if splits is None:
        raise UserError(
            f"{folder} holds no {_CACHES['train']}; if it holds images, "
            "add `--splits FOLDER`, the folder of train.csv, val.csv and test.csv."
        )
    need_pillow()
    found = find_images(folder, read_lists(splits))
    return lambda split: _Source(found[split], read_image)


def read_image(path: Path) -> Pixels:
    """Any image file as 84x84 RGB; Lanczos resampling, as Finn et al. (2017) made their files."""
    from PIL import Image

    image = open_image(path.read_bytes(), str(path), "RGB")
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.LANCZOS))


def _open_caches(folder: Path, splits: Path | None) -> Callable[[str], _Source]:
    if splits is not None:
        raise UserError(f"The pickles in {folder} are split already; leave `--splits` out.")
    for name in _CACHES.values():
        if not (folder / name).is_file():
            raise UserError(f"{folder} lacks {name}; all three pickles are needed.")
    return lambda split: _read_cache(folder / _CACHES[split])


def _read_cache(path: Path) -> _Source:
    content = load_arrays(path)
    try:
        images, classes = content["image_data"], content["class_dict"]
        rows = {str(name): np.asarray(chosen) for name, chosen in classes.items()}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise UserError(f"{path} does not hold `image_data` and `class_dict` as the usual pickles do.") from error
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (SIZE, SIZE, 3):
        raise UserError(f"{path}: `image_data` is not an array uint8[images, 84, 84, 3].")
    if not rows:
        raise UserError(f"{path}: `class_dict` is empty.")
    for name, chosen in rows.items():
        if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not np.all((chosen >= 0) & (chosen < len(images))):
            raise UserError(f"{path}: `class_dict` does not list rows of `image_data` for class {name}.")
    return _Source({name: chosen.tolist() for name, chosen in rows.items()}, images.__getitem__)
