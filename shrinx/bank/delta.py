"""What changed for one task, as arrays to store: exactly, or smaller with an error that is measured.

Exact deltas are the adapted values themselves, so that reading gives back the very bits. Compressed ones are
differences to the base, whose small numbers lose less.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax.numpy as jnp
import numpy as np

from .errors import BankError
from .safetensors import DTYPES

Compression: TypeAlias = Literal["float16", "bfloat16", "int8"]
Part: TypeAlias = tuple[np.ndarray, ...]
"""The task-specific modules of a tree, as `Restriction.extract` cuts them out."""

POSTERIOR = "posterior"
"""The array, beside the parameters, of a task that was stored with its posterior."""

ABOUT = "about/"
"""Beginning of the names of arrays that describe a task and are no parameters."""

_EXACT = "exact"


@dataclass(frozen=True)
class Delta:
    """A task as it is stored: its arrays by name, how they are encoded, and the relative error of that."""

    tensors: dict[str, np.ndarray]
    encoding: str
    error: float

    def about(self, arrays: Mapping[str, Any]) -> "Delta":
        """The same task, described by these arrays and no others."""
        parameters = {key: array for key, array in self.tensors.items() if not key.startswith(ABOUT)}
        described = {f"{ABOUT}{key}": array for key, array in as_arrays(arrays).items()}
        return Delta({**parameters, **described}, self.encoding, self.error)


_LARGEST_WHOLE = 2**53
"""Beyond it 64 bits do not hold every whole number."""


def as_arrays(about: Any) -> dict[str, np.ndarray]:
    """What describes a task, as the arrays that are stored: numbers of a kind that files lack get 64 bits."""
    if not isinstance(about, Mapping) or not all(isinstance(key, str) for key in about):
        raise TypeError(f"A task is described by arrays by name, such as {{'age': 30.0}}, got {about!r}.")
    return {key: _as_array(key, value) for key, value in about.items()}


def _as_array(key: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
        if not any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
            raise ValueError(f"No numbers but {array.dtype}.")
    except ValueError as error:  # numpy's own, if it is rows of several lengths.
        raise TypeError(f"'{key}', which describes a task, must be numbers, got {value!r}.") from error
    if jnp.issubdtype(array.dtype, jnp.integer) and np.any((array > _LARGEST_WHOLE) | (array < -_LARGEST_WHOLE)):
        raise TypeError(f"'{key}', which describes a task, has whole numbers beyond 2^53, which would be rounded.")
    kept = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype in DTYPES.values()
    return array if kept else array.astype(np.float64)


def check_compression(compression: str | None) -> None:
    if compression is not None and compression not in get_args(Compression):
        raise BankError(f"Unknown compression {compression!r}; known: {', '.join(get_args(Compression))}.")


def encode(paths: tuple[str, ...], part: Part, base: Part, compression: Compression | None) -> Delta:
    """Store `part`, which was adapted from `base`."""
    if compression is None:
        return Delta({f"value/{path}": value for path, value in zip(paths, part, strict=True)}, _EXACT, 0.0)
    tensors: dict[str, np.ndarray] = {}
    for path, value, origin in zip(paths, part, base, strict=True):
        difference = _wide(value) - _wide(origin)
        if compression == "int8":
            largest = np.max(np.abs(difference), initial=0.0)
            scale = np.asarray(largest / 127 if largest > 0 else 1.0, np.float32)
            tensors[f"scale/{path}"] = scale
            tensors[f"difference/{path}"] = np.clip(np.rint(difference / scale), -127, 127).astype(np.int8)
        else:
            with np.errstate(over="ignore"):
                tensors[f"difference/{path}"] = difference.astype(jnp.dtype(compression))
    decoded = decode(paths, Delta(tensors, compression, 0.0), base)
    lost = _norm([_wide(a) - _wide(b) for a, b in zip(decoded, part, strict=True)])
    moved = _norm([_wide(a) - _wide(b) for a, b in zip(part, base, strict=True)])
    if not np.isfinite(lost):
        raise BankError(f"The differences to the base do not fit into {compression}; use 'bfloat16' or none.")
    return Delta(tensors, compression, lost / moved if moved > 0 else 0.0)


def decode(paths: tuple[str, ...], delta: Delta, base: Part) -> Part:
    """The adapted values; a `BankError` if the arrays are not those of a task of this bank."""
    kind = "value" if delta.encoding == _EXACT else "difference"
    if kind == "difference" and delta.encoding not in get_args(Compression):
        raise BankError(f"it is encoded as {delta.encoding!r}")
    part = []
    for path, origin in zip(paths, base, strict=True):
        stored = delta.tensors.get(f"{kind}/{path}")
        if stored is None or stored.shape != origin.shape:
            raise BankError(f"there is no array '{kind}/{path}' of shape {origin.shape} in it")
        if kind == "value":
            if stored.dtype != origin.dtype:
                raise BankError(f"its array '{kind}/{path}' has dtype {stored.dtype}, the base {origin.dtype}")
            part.append(stored)
            continue
        scale = _wide(delta.tensors[f"scale/{path}"]) if delta.encoding == "int8" else 1.0
        part.append((_wide(origin) + _wide(stored) * scale).astype(origin.dtype))
    return tuple(part)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in arrays)))
