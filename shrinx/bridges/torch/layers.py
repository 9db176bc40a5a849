"""Layers that PyTorch keeps whole: convolution, pooling, normalisation, attention."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .functions import check_one_dtype, product

DROPOUT = (
    "Dropout is switched on, and here it would drop the same units at every call; call `module.eval()` first, or "
    "`.eval()` on the dropout layers alone if batch norm shall keep using the statistics of the batch."
)


def dropout(x: Array, probability: float, train: bool | None) -> tuple[Array, Array]:
    if train and probability > 0:
        raise ValueError(DROPOUT)
    return x, jnp.ones(x.shape, bool)


def _each(value: Any, count: int) -> tuple[Any, ...]:
    """One number for all axes, or one per axis."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * count if len(values) == 1 else values


def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """Convolution over any number of axes. The transposed one is a convolution of the input with holes in it."""
    check_one_dtype(x, weight)
    count = weight.ndim - 2
    stride, padding, dilation, extra = (_each(v, count) for v in (stride, padding, dilation, output_padding))
    holes = None
    pads = [(p, p) for p in padding]
    if transposed:
        reach = [d * (length - 1) for d, length in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)]
        inputs, outputs, *kernel = weight.shape
        weight = weight.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
        weight = jnp.flip(weight.reshape(groups * outputs, inputs // groups, *kernel), range(2, count + 2))
        stride, holes = (1,) * count, stride
    result = lax.conv_general_dilated(
        x, weight, stride, pads, lhs_dilation=holes, rhs_dilation=dilation, feature_group_count=groups
    )
    return result if bias is None else result + bias.reshape(-1, *(1,) * count)


def _window_slices(
    x: Array,
    rank: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    *,
    ceil_mode: bool,
    border: float,
    beyond: float,
) -> Iterator[Array]:
    """For every place in the window, what all windows see there: as many arrays as the window has places.

    `border` is the value of the padding, `beyond` the one of what `ceil_mode` adds to the padding.
    """
    kernel, padding, dilation = (_each(v, rank) for v in (kernel, padding, dilation))
    stride = _each(stride, rank) if stride else kernel
    counts, missing = [], []
    for length, k, s, p, d in zip(x.shape[-rank:], kernel, stride, padding, dilation, strict=True):
        free = length + 2 * p - d * (k - 1) - 1
        count = (-(-free // s) if ceil_mode else free // s) + 1
        count -= ceil_mode and (count - 1) * s >= length + p  # The last window must start within the input.
        counts.append(count)
        missing.append((0, max((count - 1) * s - free, 0)))
    x = _pad_last(x, [(p, p) for p in padding], border)
    x = _pad_last(x, missing, beyond)
    for place in np.ndindex(*kernel):
        starts = [offset * d for offset, d in zip(place, dilation, strict=True)]
        ends = [start + (count - 1) * s + 1 for start, count, s in zip(starts, counts, stride, strict=True)]
        yield x[(..., *map(slice, starts, ends, stride))]


def _pad_last(x: Array, amounts: Sequence[tuple[int, int]], value: float) -> Array:
    untouched = [(0, 0, 0)] * (x.ndim - len(amounts))
    return lax.pad(x, jnp.asarray(value, x.dtype), [*untouched, *((low, high, 0) for low, high in amounts)])


def _first_largest(a: Array, b: Array) -> Array:
    """Among equals the first one counts, and gets all of the gradient, as in PyTorch."""
    return jnp.where((b > a) | jnp.isnan(b), b, a)


def max_pool(rank: int) -> Callable[..., Array]:
    def pool(
        x: Array, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Array:
        fills = {"border": -math.inf, "beyond": -math.inf}
        slices = _window_slices(x, rank, kernel, stride, padding, dilation, ceil_mode=ceil_mode, **fills)
        return functools.reduce(_first_largest, slices)

    return pool


def mean_pool(rank: int) -> Callable[..., Array]:
    def pool(
        x: Array,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        def total(array: Array, border: float) -> Array:
            fills = {"border": border, "beyond": 0.0}
            return functools.reduce(
                jnp.add, _window_slices(array, rank, kernel, stride, padding, ceil_mode=ceil_mode, **fills)
            )

        counted = total(jnp.ones(x.shape[-rank:], x.dtype), float(count_include_pad))
        return total(x, 0.0) / (counted if divisor_override is None else divisor_override)

    return pool


def _adaptive_pool(reduce: Callable[[Array, int], Array], rank: int) -> Callable[..., Array]:
    """Windows are products of intervals, so one axis after the other will do, for means as for maxima."""

    def pool(x: Array, output_size: Any) -> Array:
        for axis, size in reversed([*enumerate(_each(output_size, rank), start=x.ndim - rank)]):
            length = x.shape[axis]
            bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
            x = jnp.stack([reduce(lax.slice_in_dim(x, *bound, axis=axis), axis) for bound in bounds], axis)
        return x

    return pool


def adaptive_mean_pool(rank: int) -> Callable[..., Array]:
    return _adaptive_pool(jnp.mean, rank)


def adaptive_max_pool(rank: int) -> Callable[..., tuple[Array]]:
    pool = _adaptive_pool(lambda x, axis: functools.reduce(_first_largest, jnp.unstack(x, axis=axis)), rank)
    return lambda x, output_size: (pool(x, output_size),)


def _wide(x: Array) -> Array:
    """Statistics of half-precision arrays are computed in single precision."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _scale(x: Array, weight: Array | None, bias: Array | None, shape: Sequence[int]) -> Array:
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _normalise(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    mean = jnp.mean(x, axes, keepdims=True)
    deviation = lax.rsqrt(jnp.var(x, axes, keepdims=True) + epsilon)
    return (x - mean) * deviation, mean, deviation


def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, epsilon: float
) -> tuple[Array, ...]:
    result, *moments = _normalise(_wide(x), tuple(range(-len(shape), 0)), epsilon)
    return _scale(result, weight, bias, shape), *moments


def group_norm(
    x: Array, weight: Array | None, bias: Array | None, n: int, c: int, size: int, groups: int, epsilon: float
) -> tuple[Array, ...]:
    result, mean, deviation = _normalise(_wide(x).reshape(n, groups, -1), (2,), epsilon)
    shape = (-1, *(1,) * (x.ndim - 2))
    return _scale(result.reshape(x.shape), weight, bias, shape), mean[..., 0], deviation[..., 0]


def batch_norm_of_batch(x: Array, weight: Array | None, bias: Array | None, *rest: Any) -> tuple[Array, ...]:
    """By the statistics of the batch; the running ones stay as they are."""
    *running, _, _, epsilon = rest
    result, mean, deviation = _normalise(_wide(x), (0, *range(2, x.ndim)), epsilon)
    return _scale(result, weight, bias, (-1, *(1,) * (x.ndim - 2))), mean.ravel(), deviation.ravel(), *running


def batch_norm_running(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    momentum: float,
    epsilon: float,
) -> tuple[Array, ...]:
    shape = (-1, *(1,) * (x.ndim - 2))
    result = (_wide(x) - mean.reshape(shape)) * lax.rsqrt(variance + epsilon).reshape(shape)
    return (_scale(result, weight, bias, shape),)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """Scaled dot-product attention. A query that may look at nothing gets 0."""
    if dropout_p > 0:
        raise ValueError(DROPOUT)
    if enable_gqa:
        key, value = (jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = _wide(product(query * scale, key.swapaxes(-1, -2)))
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
    largest = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - jnp.where(jnp.isneginf(largest), 0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    return (weights / jnp.where(total == 0, 1, total)).astype(value.dtype) @ value
