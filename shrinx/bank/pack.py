"""Many tasks in one file: the same arrays as in their own files, stacked.

A task's own file has a header of some four hundred bytes, which is more than eighty parameters take. In the pack a task
costs its parameters, its name and eight bytes of digest, so that one row can be checked without the others. The list of
tasks, which is compressed with a checksum, also says which arrays there are: a row says nothing about their names.
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
_DIGEST = "digest"
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
        group = {key: np.stack([deltas[name].tensors[key] for name in names]) for key, _, _ in layout}
        rows = b"".join(known.get(name) or _row_digest(name, deltas[name].tensors) for name in names)
        group[_DIGEST] = np.frombuffer(rows, np.uint8).reshape(len(names), _DIGEST_SIZE)
        tensors |= {f"{number}/{key}": array for key, array in group.items()}
        errors = [deltas[name].error for name in names]
        listing.append({"encoding": encoding, "names": names, "errors": errors, "arrays": _kinds(group)})
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
            return {
                check_name(name): _Place(number, row, str(group["encoding"]), float(error))
                for number, group in enumerate(self._groups)
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
        arrays = self._arrays[place.group]
        try:
            rows = {key: np.array(array[place.row]) for key, array in arrays.items()}
            digest = rows.pop(_DIGEST).tobytes()
        except (KeyError, IndexError) as error:
            raise DamagedError(f"{self.file.path} is damaged: task {name!r} is listed but not there.") from error
        if len(digest) != _DIGEST_SIZE or not self._as_listed[place.group]:
            raise DamagedError(f"{self.file.path} is damaged: the arrays of task {name!r} are not those listed.")
        return Delta(rows, place.encoding, place.error), digest

    def check_listed(self) -> None:
        """Raise a `DamagedError` if writing the rows anew might lose something or hide that it is damaged.

        So it might if a damaged header gives arrays to no task, or other names. Rows may be damaged: that stays known.
        """
        if not all("arrays" in group for group in self._groups):
            self.file.check()  # Written before arrays were listed: all must be well.
            return
        spans = sorted(entry["data_offsets"] for entry in self.file.entries.values())
        adjoining = [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])]
        if not adjoining or not all(self._as_listed) or len(spans) != 1 + sum(map(len, self._arrays)):
            raise DamagedError(f"{self.file.path} is damaged: its arrays are not those listed.")

    @functools.cached_property
    def _groups(self) -> Any:
        """The list of tasks, by groups whose arrays are stacked."""
        return json.loads(zlib.decompress(self.file.array("listing").tobytes()))

    @functools.cached_property
    def _arrays(self) -> list[dict[str, np.ndarray]]:
        """The stacked arrays of every group."""
        groups: dict[str, dict[str, np.ndarray]] = {str(number): {} for number in range(len(self._groups))}
        for key in self.file.entries:
            number, _, rest = key.partition("/")
            if number in groups:
                groups[number][rest] = self.file.array(key)
        return list(groups.values())

    @functools.cached_property
    def _as_listed(self) -> list[bool]:
        """Which groups have the arrays that they had when they were written, as far as that is known."""
        found = list(map(_kinds, self._arrays))
        return [group.get("arrays", kinds) == kinds for group, kinds in zip(self._groups, found, strict=True)]


def _kinds(arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """Names, dtypes and shapes, as the list of tasks has them."""
    return sorted([key, str(array.dtype), list(array.shape)] for key, array in arrays.items())


def _row_digest(name: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_SIZE)
    for _, array in sorted(tensors.items()):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
