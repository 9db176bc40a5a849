"""Which image belongs to which class and split: the csv files of Ravi and Larochelle (2017)."""

import csv
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ..runs.errors import UserError
from .miniimagenet import SPLITS

Lists = dict[str, dict[str, list[str]]]
"""Split -> class -> file names."""

_FILES = {"train": "train.csv", "validation": "val.csv", "test": "test.csv"}
_SUFFIXES = {".jpg", ".jpeg", ".png"}


def read_lists(folder: Path) -> Lists:
    """The three lists in `folder`, each with the columns `filename` and `label`."""
    return {split: _read_list(folder / _FILES[split]) for split in SPLITS}


def _read_list(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        raise UserError(f"There is no {path}; the folder of the splits holds train.csv, val.csv and test.csv.")
    listed: dict[str, list[str]] = defaultdict(list)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                listed[row["label"]].append(row["filename"])
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a table with the columns filename and label ({error}).") from error
    if not listed:
        raise UserError(f"{path} lists no images.")
    for label, names in listed.items():
        if not label or not all(names) or len(set(names)) < len(names):
            raise UserError(f"{path}: class {label!r} has an image twice or a line without name or label.")
    return dict(listed)


def find_images(folder: Path, lists: Lists) -> dict[str, dict[str, list[Path]]]:
    """The files that `lists` name, wherever they are under `folder`: in one folder, or in folders per class or split.

    Some copies of miniImageNet have ImageNet's own file names, which the lists do not know. Then the first images of
    each class's folder are taken, as many as are listed, with a warning.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _SUFFIXES]
    by_name, by_class = _group(files, lambda path: path.name), _group(files, lambda path: path.parent.name)
    listed = [(label, name) for classes in lists.values() for label, names in classes.items() for name in names]
    found = {
        (label, name): path for label, name in listed if (path := _choose(by_name.get(Path(name).name, []), label))
    }
    missing = [name for label, name in listed if (label, name) not in found]
    if not missing:
        return _each_class(lists, lambda label, names: [found[label, name] for name in names])
    if not found and all(label in by_class for label, _ in listed):
        warnings.warn(
            f"{folder} has none of the file names in the splits; the first images of each class's folder are used.",
            stacklevel=3,
        )
        return _each_class(lists, lambda label, names: by_class[label][: len(names)])
    lacking = f"{folder} lacks {len(missing)} of the {len(listed)} images in the splits, such as {missing[0]}"
    absent = sorted({label for label, _ in listed} - {label for label, _ in found} - set(by_class))
    if absent:
        some = f"{absent[0]}{' and others' * (len(absent) > 1)}"
        lacking += f"; there is neither a folder nor any listed image of class {some}"
    raise UserError(f"{lacking}.")


def _group(files: list[Path], key: Callable[[Path], str]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        groups[key(path)].append(path)
    return groups


def _choose(same_name: list[Path], label: str) -> Path | None:
    """The file in the class's folder; elsewhere a name counts only if it is unique."""
    in_class = [path for path in same_name if path.parent.name == label]
    if in_class:
        return in_class[0]
    return same_name[0] if len(same_name) == 1 else None


def _each_class(lists: Lists, images: Callable[[str, list[str]], list[Path]]) -> dict[str, dict[str, list[Path]]]:
    return {
        split: {label: images(label, names) for label, names in classes.items()} for split, classes in lists.items()
    }
