"""Checkpoints: the arrays of a state, one file per moment, the last few kept.

A file is an uncompressed npz without pickles, named by its step. It ends with a digest of all bytes: a truncated or
altered file is noticed and the one before it is used.
"""

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .errors import UserError
from .files import write_atomically

KEEP = 3
_DIGEST = "digest"


def save(folder: Path, step: int, state: Any, *, keep: int = KEEP) -> Path:
    """Write `state` as the checkpoint of `step` and remove all but the newest `keep`."""
    arrays = {f"{index:05d}": _plain(np.asarray(leaf)) for index, leaf in enumerate(jax.tree.leaves(state))}
    path = folder / f"{step:010d}.npz"
    stored: dict[str, Any] = {**arrays, _DIGEST: digest_of(arrays)}
    write_atomically(path, lambda file: np.savez(file, **stored))
    for old in _files(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def restore(folder: Path, like: Any) -> tuple[int, Any] | None:
    """The newest readable checkpoint as `(step, state)`, shaped like `like`; `None` if there is none.

    A damaged file is passed over with a warning. If all are damaged that is an error: starting anew would hide it.
    """
    files = _files(folder)
    for path in reversed(files):
        try:
            return int(path.stem), _read(path, like)
        except _Damaged as damage:
            warnings.warn(f"Checkpoint {path.name} is damaged ({damage}); going back to the one before.", stacklevel=2)
    if files:
        raise UserError(f"All {len(files)} checkpoints in {folder} are damaged; delete the folder to start anew.")
    return None


class _Damaged(Exception):
    pass


def _read(path: Path, like: Any) -> Any:
    leaves, treedef = jax.tree.flatten(like)
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken file.
        raise _Damaged("it is no file of arrays") from error
    digest = arrays.pop(_DIGEST, None)
    if digest is None or not np.array_equal(digest, digest_of(arrays)):
        raise _Damaged("its digest does not match")
    expected = [np.asarray(leaf) for leaf in leaves]
    if [(_plain(ours).shape, _plain(ours).dtype) for ours in expected] != [(a.shape, a.dtype) for a in arrays.values()]:
        raise UserError(
            f"Checkpoint {path} belongs to another model, algorithm or version of shrinx: its arrays have other shapes."
        )
    stored = (array.view(ours.dtype) for array, ours in zip(arrays.values(), expected, strict=True))
    return treedef.unflatten([jax.numpy.asarray(array) for array in stored])


def _plain(array: np.ndarray) -> np.ndarray:
    """numpy has no bfloat16 of its own and reads it back as bytes: such types are kept as integers."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.npz") if re.fullmatch(r"\d{10}\.npz", path.name))


def digest_of(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """A digest of names, types, shapes and bytes, as an array that can stand beside them."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint8)
