"""Shapes and positions: views, cuts, gathers, and arrays made from nothing.

Views are copies here, which nobody can tell: the graph that PyTorch exports has no in-place writes left.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array


def same(x: Array, dtype: Any = None) -> Array:
    return x


def expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    known = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [have if want == -1 else want for want, have in zip(size, known, strict=True)])


def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    axes = range(x.ndim) if dim is None else dim if isinstance(dim, Sequence) else [dim]
    chosen = [axis % max(x.ndim, 1) for axis in axes]
    return x.reshape([length for axis, length in enumerate(x.shape) if axis not in chosen or length != 1])


def repeat(x: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(repeats))


def concatenate(arrays: Sequence[Array], dim: int = 0) -> Array:
    # PyTorch lets an empty vector join anything.
    return jnp.concatenate([array for array in arrays if array.shape != (0,)] or arrays[:1], axis=dim)


def split(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim)


def pad(x: Array, amounts: Sequence[int], value: Any = 0) -> Array:
    # Two numbers per axis from the last axis backwards; negative ones cut.
    pairs = [(low, high, 0) for low, high in zip(amounts[::2], amounts[1::2], strict=True)][::-1]
    return lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0)] * (x.ndim - len(pairs)) + pairs)


def windows(x: Array, dim: int, size: int, step: int) -> Array:
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    cut = jnp.take(x, starts[:, None] + np.arange(size), axis=dim)
    return jnp.moveaxis(cut, dim % x.ndim + 1, -1)


def _section(x: Array, dim: int, part: Any) -> tuple[Any, ...]:
    return (slice(None),) * (dim % x.ndim) + (part,)


def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[_section(x, dim, slice(start, end, step))]


def put_slice(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x.at[_section(x, dim, slice(start, end, step))].set(source)


def select(x: Array, dim: int, index: int) -> Array:
    return x[_section(x, dim, index)]


def put_selected(x: Array, source: Array, dim: int, index: int) -> Array:
    return x.at[_section(x, dim, index)].set(source)


def _get(x: Array, positions: tuple[Any, ...]) -> Array:
    # A position that does not exist gives NaN; the custom of JAX, the last one that does, would go unnoticed.
    return x.at[positions].get(mode="fill")


def take(x: Array, dim: int, index: Array) -> Array:
    return _get(x, _section(x, dim, index))


def _positions(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def index(x: Array, indices: Sequence[Array | None]) -> Array:
    return _get(x, _positions(indices))


def put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype == bool and values.size == 1:
        chosen = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        return jnp.where(chosen, x + values if accumulate else values, x)
    target = x.at[_positions(indices)]
    return target.add(values) if accumulate else target.set(values)


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """Positions of `gather` and `scatter`: along `dim` those of `index`, along the other axes their own."""
    axes = [lax.broadcasted_iota(index.dtype, index.shape, axis) for axis in range(index.ndim)]
    return (*axes[: dim % index.ndim], index, *axes[dim % index.ndim + 1 :])


def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    return _get(x, _grid(index, dim))


def scatter(x: Array, dim: int, index: Array, source: Any) -> Array:
    return x.at[_grid(index, dim)].set(source if jnp.ndim(source) == 0 else source[tuple(map(slice, index.shape))])


def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[_grid(index, dim)].add(source[tuple(map(slice, index.shape))])


def embedding(
    weight: Array, index: Array, padding_index: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Array:
    if scale_grad_by_freq:
        raise ValueError("An embedding with `scale_grad_by_freq=True` has no counterpart in JAX; switch it off.")
    rows = take(weight, 0, index)
    padding = (index == padding_index)[..., None]
    return rows if padding_index < 0 else jnp.where(padding, lax.stop_gradient(rows), rows)


def full(size: Sequence[int], value: Any, dtype: Any = None) -> Array:
    return jnp.full(tuple(size), value, dtype)


def full_like(x: Array, value: Any, dtype: Any = None) -> Array:
    return jnp.full(x.shape, value, x.dtype if dtype is None else dtype)


def empty(size: Sequence[int], dtype: Any = None) -> Array:
    return jnp.zeros(tuple(size), dtype)


def fill(x: Array, value: Any) -> Array:
    return jnp.full(x.shape, value, x.dtype)


def overwrite(x: Array, source: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(source, x.shape)


def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Array:
    return jnp.asarray(start + step * np.arange(math.ceil((end - start) / step)), dtype)
