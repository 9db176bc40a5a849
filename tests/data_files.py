"""Small files like those that data comes in."""

import csv
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from shrinx.data import load_miniimagenet
from shrinx.data.miniimagenet import NAMES, SPLITS, file_name

ALPHABETS = {"images_background": {"Latin": 2, "Greek": 1}, "images_evaluation": {"Tengwar": 2}}


def drawing(seed: int) -> np.ndarray:
    """A 105x105 drawing, True where there is ink: a random walk with a thick pen."""
    ink = np.zeros((105, 105), bool)
    for row, column in np.cumsum(np.random.RandomState(seed).randint(-2, 3, (200, 2)), axis=0) + 50:
        ink[max(row, 0) : max(row + 3, 0), max(column, 0) : max(column + 3, 0)] = True
    return ink


def png(ink: np.ndarray) -> bytes:
    """One bit per pixel, ink black, as Omniglot's files are."""
    file = io.BytesIO()
    Image.fromarray(~ink).save(file, "png")
    return file.getvalue()


def omniglot_files(part: str, number: int = 1) -> dict[str, bytes]:
    files = {}
    for alphabet, characters in ALPHABETS[part].items():
        for character in range(1, characters + 1):
            for index in range(1, 21):
                name = f"{part}/{alphabet}/character{character:02d}/{number:04d}_{index:02d}.png"
                files[name] = png(drawing(100 * number + index))
            number += 1
    return files


BACKGROUND, EVALUATION = omniglot_files("images_background"), omniglot_files("images_evaluation", 4)


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def omniglot_arrays(characters: int = 3) -> dict[str, np.ndarray]:
    return {
        "images": np.random.default_rng(0).integers(0, 256, (characters, 20, 28, 28), np.uint8),
        "alphabet": np.array(["Latin"] * characters),
        "character": np.array([f"character{row:02d}" for row in range(characters)]),
        "is_background": np.ones(characters, bool),
    }


CLASSES = {"train": ["n03", "n01"], "val": ["n05"], "test": ["n09", "n07"]}


def omniglot_folder(folder: Path) -> Path:
    """The real data if `SHRINX_DATA` has them, otherwise 46 alphabets of 27 characters of noise."""
    real = Path(os.environ.get("SHRINX_DATA", ""))
    if (real / "omniglot28.npz").exists():
        return real
    arrays = omniglot_arrays(46 * 27)
    alphabet = np.repeat([f"alphabet {number:02d}" for number in range(46)], 27)
    np.savez(folder / "omniglot28.npz", **{**arrays, "alphabet": alphabet})
    return folder


def miniimagenet_folder(folder: Path, classes: int = 5, images: int = 3) -> Path:
    """Noise of the right shape; the first byte of every image is 10 for training, 20 for validation and 30 for test."""
    names = {}
    for number, split in enumerate(SPLITS, start=1):
        pixels = np.random.default_rng(number).integers(0, 256, (classes, images, 84, 84, 3), np.uint8)
        pixels[:, :, 0, 0, 0] = 10 * number
        np.save(folder / file_name(split), pixels)
        names[split] = [f"n{number}{row}" for row in range(classes)]
    (folder / NAMES).write_text(json.dumps(names))
    return folder


def picture(label: str, index: int) -> np.ndarray:
    return np.random.RandomState(1000 * int(label[1:]) + index).randint(0, 256, (84, 84, 3), np.uint8)


def image_files(layout: str, images: int = 3) -> dict[str, bytes]:
    """PNGs: they are read back as they were."""
    folders = {"flat": "", "classes": "{label}/", "splits": "images/{split}/{label}/", "original": "{label}/"}
    files = {}
    for split, labels in CLASSES.items():
        for label in labels:
            for index in range(images):
                file = io.BytesIO()
                Image.fromarray(picture(label, index)).save(file, "png")
                name = f"{label}_{index}.PNG" if layout == "original" else f"{label}{index:08d}.png"
                files[folders[layout].format(split=split, label=label) + name] = file.getvalue()
    return files


def write_lists(folder: Path, **extra: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for split, labels in CLASSES.items():
        rows = [(f"{label}{index:08d}.png", label) for label in labels for index in range(3)]
        with open(folder / f"{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("filename", "label"), *rows, *extra.get(split, [])])
    return folder


def check_pictures(folder: Path) -> None:
    """The files made from any form of the pictures hold the first three of each class."""
    data = load_miniimagenet(folder)
    assert data.names == {"train": ("n01", "n03"), "validation": ("n05",), "test": ("n07", "n09")}
    for split, labels in data.names.items():
        array = getattr(data, split)
        assert isinstance(array, np.memmap)
        expected = [[picture(label, index) for index in range(3)] for label in labels]
        np.testing.assert_array_equal(array, np.array(expected))


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did, as one type."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        data = value.encode() if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(data)) + data)

    dispatch[str] = dispatch[bytes] = save_string


def dump(value, form: str | int) -> bytes:
    if form != "python 2":
        return pickle.dumps(value, protocol=form)
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def write_caches(folder: Path, form: str | int = 2, **replaced: object) -> Path:
    folder.mkdir(exist_ok=True)
    for split, labels in CLASSES.items():
        images = np.array([picture(label, index) for label in labels for index in range(3)])
        rows = {label: list(range(3 * row, 3 * row + 3)) for row, label in enumerate(labels)}
        content = replaced.get(split, {"image_data": images, "class_dict": rows})
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(dump(content, form))
    return folder
