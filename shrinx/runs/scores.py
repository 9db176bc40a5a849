"""Scores of held-out tasks, one set of modules after the other. An interruption costs the set it falls into."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from .files import write_atomically
from .interruption import resumable
from .progress import meter

CurveFn = Callable[[np.ndarray], np.ndarray]
"""From the modules that adapt in each lane, `[lanes, modules]`, to scores `[lanes, tasks, steps]`."""


def score_sets(
    curve_of: CurveFn, masks: Mapping[str, np.ndarray], file: Path, console: Console | None
) -> dict[str, np.ndarray]:
    """What `curve_of` gives for every set of modules, with a bar.

    `file` keeps what is finished. It is there to be read once, by the same run: nothing but the masks is compared.
    """
    found = _kept(masks, file)
    if console is not None and len(found) < len(masks):
        console.print("Adapting to held-out tasks: all modules, and sets of them …")
    with meter(len(masks), len(found), console) as progress, resumable(file):
        for label, mask in masks.items():
            if label not in found:
                found[label] = curve_of(mask)
                _keep(found, masks, file)
                progress.advance(len(found), label)
    return {label: found[label] for label in masks}


def _keep(found: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray], file: Path) -> None:
    # By number: a label may hold what no member of an archive can be called.
    numbers = {label: index for index, label in enumerate(masks)}
    arrays = {f"mask{numbers[label]}": masks[label] for label in found}
    arrays |= {f"scores{numbers[label]}": scores for label, scores in found.items()}
    write_atomically(file, lambda stream: np.savez(stream, **arrays))  # pyright: ignore[reportArgumentType]


def _kept(masks: Mapping[str, np.ndarray], file: Path) -> dict[str, np.ndarray]:
    if not file.exists():
        return {}
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken file.
        warnings.warn(f"{file} is damaged ({error}); held-out tasks are scored anew.", stacklevel=2)
        return {}
    return {
        label: arrays[f"scores{index}"]
        for index, (label, mask) in enumerate(masks.items())
        if np.array_equal(arrays.get(f"mask{index}", ()), mask) and f"scores{index}" in arrays
    }
