"""Safetensors files: eight bytes of length, a header in JSON, raw arrays. Nothing in them can execute.

Written out here because the format is this small, and because a bank wants what the package of that name does not offer
with numpy: bfloat16, single rows of a mapped array, and a digest of the whole file inside its header. Files are
readable by that package and by everything else that knows the format.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..runs.files import write_atomically
from .errors import BankError, DamagedError

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_BLANK = "0" * 64


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """Write a file atomically, and return its digest.

    The digest (SHA-256, kept in the metadata) covers every byte of the file, with zeros in its own place.
    """
    # The widest first, as the format asks for: then every array starts at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    entries, end = {}, 0
    for name, array in ordered:
        if array.dtype not in _NAMES:
            raise BankError(f"'{name}' has dtype {array.dtype}, which a bank cannot store; known: {list(DTYPES)}.")
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    bodies = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for _, array in ordered]
    digest = _digest(_header(metadata, entries, _BLANK), *bodies)

    def write(file: Any) -> None:
        file.write(_header(metadata, entries, digest))
        for body in bodies:
            file.write(body)

    write_atomically(path, write)
    return digest


@dataclass(frozen=True, eq=False)
class TensorFile:
    """An opened file. Arrays are views of its bytes, read from the disk when somebody looks at them."""

    path: Path
    metadata: dict[str, str]
    entries: dict[str, Any]
    content: np.ndarray
    start: int

    @staticmethod
    def open(path: Path, *, mapped: bool) -> "TensorFile":
        """Read the header, and with `mapped` nothing else; a `FileNotFoundError` if there is no such file."""
        try:
            content = np.memmap(path, np.uint8, mode="r") if mapped else np.fromfile(path, np.uint8)
        except ValueError:  # An empty file cannot be mapped.
            content = np.empty(0, np.uint8)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BankError(f"{path} cannot be read ({error.strerror or error}).") from error
        try:
            start = 8 + int.from_bytes(content[:8].tobytes(), "little")
            if not 8 < start <= len(content):
                raise ValueError("its header is cut short")
            entries = json.loads(content[8:start].tobytes())
            metadata = entries.pop(_METADATA)
            for name, entry in entries.items():
                _check_entry(name, entry, len(content) - start)
            if not all(isinstance(value, str) for value in [metadata["digest"], *metadata.values()]):
                raise TypeError("its metadata holds something else than text")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path} is damaged: its header cannot be read ({error!r:.200}).") from error
        return TensorFile(path, metadata, entries, content, start)

    @property
    def digest(self) -> str:
        return self.metadata["digest"]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.entries[name]["shape"])

    def array(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        first, last = (self.start + offset for offset in entry["data_offsets"])
        return self.content[first:last].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def check(self) -> None:
        """Read all of the file and raise a `DamagedError` if it is not what was written."""
        # A digest that is too short to be one must not blank out something else.
        blank = self.content[: self.start].tobytes()
        if len(self.digest) == len(_BLANK):
            blank = blank.replace(self.digest.encode(errors="replace"), _BLANK.encode(), 1)
        if _digest(blank, self.content[self.start :]) != self.digest:
            raise DamagedError(f"{self.path} is damaged: its content does not match its digest.")


def _header(metadata: Mapping[str, str], entries: Mapping[str, Any], digest: str) -> bytes:
    text = json.dumps({_METADATA: {**metadata, "digest": digest}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _check_entry(name: str, entry: Any, size: int) -> None:
    dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in [*shape, first, last])
    if not whole or last > size or last - first != dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"array {name!r:.50} does not fit into the file")
