"""Scores of held-out tasks, one set of modules after the other. An interruption costs the set it falls into."""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from .checkpoint import digest_of
from .files import write_atomically
from .interruption import heed, resumable
from .progress import meter

CurveFn = Callable[[np.ndarray], np.ndarray]
"""From the modules that adapt in each lane, `[lanes, modules]`, to scores `[lanes, tasks, steps]`."""


class Scores(NamedTuple):
    """Scores by set of modules, and the seconds that went into them before an interruption."""

    of: dict[str, np.ndarray]
    seconds_before: float


def score_sets(
    curve_of: CurveFn, masks: Mapping[str, np.ndarray], priors: Any, file: Path, console: Console | None
) -> Scores:
    """What `curve_of` gives for every set of modules, with a bar; it is about `priors`.

    `file` keeps what is finished; what it has of other priors or other modules is not looked at.
    """
    fingerprint, started = digest_of(_arrays(priors)), time.monotonic()
    found, before = _kept(masks, fingerprint, file)
    if console is not None and len(found) < len(masks):
        console.print("Adapting to held-out tasks: all modules, and sets of them …")
    with meter(len(masks), len(found), console) as progress, resumable(file):
        for label, mask in masks.items():
            if label not in found:
                found[label] = curve_of(mask)
                seconds = np.asarray(before + time.monotonic() - started)
                _keep(found, masks, {"priors": fingerprint, "seconds": seconds}, file)
                progress.advance(len(found), label)
                heed()
    return Scores({label: found[label] for label in masks}, before)


def _keep(
    found: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray], about: Mapping[str, np.ndarray], file: Path
) -> None:
    # By number: a label may hold what no member of an archive can be called.
    numbers = {label: index for index, label in enumerate(masks)}
    arrays = {**about} | {f"mask{numbers[label]}": masks[label] for label in found}
    arrays |= {f"scores{numbers[label]}": scores for label, scores in found.items()}
    write_atomically(file, lambda stream: np.savez(stream, **arrays))  # pyright: ignore[reportArgumentType]


def _kept(masks: Mapping[str, np.ndarray], fingerprint: np.ndarray, file: Path) -> tuple[dict[str, np.ndarray], float]:
    if not file.exists():
        return {}, 0.0
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken file.
        warnings.warn(f"{file} is damaged ({error}); held-out tasks are scored anew.", stacklevel=2)
        return {}, 0.0
    if not np.array_equal(arrays.get("priors", ()), fingerprint):
        return {}, 0.0
    found = {
        label: arrays[f"scores{index}"]
        for index, (label, mask) in enumerate(masks.items())
        if np.array_equal(arrays.get(f"mask{index}", ()), mask) and f"scores{index}" in arrays
    }
    return found, float(arrays["seconds"])


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    return {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}
