"""Many tasks in one file: the same arrays as in their own files, stacked.

A task's own file has a header of some four hundred bytes, which is more than eighty parameters take. In the pack a task
costs its parameters, its name and eight bytes of digest, so that one row can be checked without the others.
"""

import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .delta import Delta
from .errors import DamagedError
from .names import check_name
from .safetensors import TensorFile, write_tensors

FORMAT = "shrinx-pack-1"
_DIGEST_SIZE = 8


def write_pack(path: Path, deltas: Mapping[str, Delta], base: str, digests: Mapping[str, bytes] | None = None) -> None:
    """Write the tasks `deltas`, all made for the base with the digest `base`.

    `digests` are those of rows that come from another pack, by name: a damaged row stays one that is known to be.
    """
    known = digests or {}
    groups: dict[Any, list[str]] = {}
    for name, delta in deltas.items():
        layout = [(key, str(array.dtype), array.shape) for key, array in sorted(delta.tensors.items())]
        groups.setdefault((delta.encoding, *layout), []).append(name)
    tensors, listing = {}, []
    for number, ((encoding, *layout), names) in enumerate(groups.items()):
        for key, _, _ in layout:
            tensors[f"{number}/{key}"] = np.stack([deltas[name].tensors[key] for name in names])
        rows = b"".join(known.get(name) or _row_digest(name, deltas[name].tensors) for name in names)
        tensors[f"{number}/digest"] = np.frombuffer(rows, np.uint8).reshape(len(names), _DIGEST_SIZE)
        listing.append({"encoding": encoding, "names": names, "errors": [deltas[name].error for name in names]})
    tensors["listing"] = np.frombuffer(zlib.compress(json.dumps(listing).encode()), np.uint8)
    write_tensors(path, tensors, {"format": FORMAT, "base": base})


@dataclass(frozen=True)
class _Place:
    group: int
    row: int
    encoding: str
    error: float


@dataclass(frozen=True, eq=False)
class Pack:
    """A pack, opened. Reading a task reads its rows only."""

    file: TensorFile

    @staticmethod
    def open(path: Path) -> "Pack":
        return Pack(TensorFile.open(path, mapped=True))

    @functools.cached_property
    def places(self) -> dict[str, _Place]:
        """Where every task is, by name."""
        try:
            listing = json.loads(zlib.decompress(self.file.array("listing").tobytes()))
            return {
                check_name(name): _Place(number, row, group["encoding"], error)
                for number, group in enumerate(listing)
                for row, (name, error) in enumerate(zip(group["names"], group["errors"], strict=True))
            }
        except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"{self.file.path} is damaged: its list of tasks cannot be read.") from error

    def read(self, name: str) -> Delta:
        """A task, checked."""
        delta, digest = self.row(name)
        if digest != _row_digest(name, delta.tensors):
            raise DamagedError(f"{self.file.path} is damaged: task {name!r} does not match its digest.")
        return delta

    def row(self, name: str) -> tuple[Delta, bytes]:
        """A task as it is there, and the digest it should have."""
        place = self.places[name]
        prefix = f"{place.group}/"
        try:
            rows = {
                key.removeprefix(prefix): np.array(self.file.array(key)[place.row])
                for key in self.file.entries
                if key.startswith(prefix)
            }
            digest = rows.pop("digest").tobytes()
        except (KeyError, IndexError) as error:
            raise DamagedError(f"{self.file.path} is damaged: task {name!r} is listed but not there.") from error
        return Delta(rows, place.encoding, place.error), digest


def _row_digest(name: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_SIZE)
    for _, array in sorted(tensors.items()):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
