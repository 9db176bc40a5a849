"""The functions of the kernels in plain JAX: what second derivatives are taken of, and what tests compare with."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._convolve import convolve as convolve_images
from .._convolve import patches_of
from ..conv import EPSILON
from .block import Channels, Kernel, Rows
from .first import patch_columns
from .pixels import Grid

Images = Float[Array, "_ _ _ _"]


class Moments(NamedTuple):
    """Of a channel before batch norm: mean, inverse deviation, and the factor and shift that normalise it."""

    mean: Channels
    inverse: Channels
    factor: Channels
    shift: Channels


def moments(sums: Float[Array, "2 channels"], count: int, scale: Channels, offset: Channels) -> Moments:
    """From sums of values and of squares."""
    mean, square = sums[0] / count, sums[1] / count
    variance = square - jnp.square(mean)
    inverse = jax.lax.rsqrt(jnp.where(variance > 0, variance, 0) + EPSILON)
    factor = scale * inverse
    return Moments(mean, inverse, factor, offset - mean * factor)


# A function for every kernel, of the same arguments.


def convolve(inputs: Rows, kernel: Kernel, *, grid: Grid) -> tuple[Rows, Float[Array, "2 filters"]]:
    raw = flat(convolve_images(unflat(inputs, grid), kernel))
    wide = raw.astype(jnp.float32)
    return raw, jnp.stack([jnp.sum(wide, axis=0), jnp.sum(jnp.square(wide), axis=0)])


def convolve_transposed(cotangent: Rows, kernel: Kernel, *, grid: Grid) -> Rows:
    return flat(convolve_images(unflat(cotangent, grid), jnp.swapaxes(jnp.flip(kernel, (0, 1)), 2, 3)))


def kernel_gradient(inputs: Rows, cotangent: Rows, *, grid: Grid) -> Kernel:
    gradient = _wide_product(flat(patches_of(unflat(inputs, grid))).T, cotangent)
    return gradient.reshape(3, 3, inputs.shape[1], cotangent.shape[1])


def normalise_pool(raw: Rows, factor: Channels, shift: Channels, *, grid: Grid) -> Rows:
    return jax.nn.relu(_largest(_normalised(raw, factor, shift, grid))).astype(raw.dtype)


def pool_gradient_sums(
    raw: Rows,
    cotangent: Rows,
    factor: Channels,
    shift: Channels,
    mean: Channels,
    inverse: Channels,
    *,
    grid: Grid,
) -> Float[Array, "2 channels"]:
    parts = _routed(raw, cotangent, factor, shift, grid)
    centred = [(pixels.astype(jnp.float32) - mean[None]) * inverse[None] for pixels in _corners(raw, grid)]
    along = [jnp.sum(part * pixels, axis=0) for part, pixels in zip(parts, centred, strict=True)]
    return jnp.stack([sum(jnp.sum(part, axis=0) for part in parts), sum(along)])


def pool_gradient(
    raw: Rows,
    cotangent: Rows,
    factor: Channels,
    shift: Channels,
    slope: Channels,
    constant: Channels,
    *,
    grid: Grid,
) -> Rows:
    routed = _interleave(_routed(raw, cotangent, factor, shift, grid), grid)
    wide = factor[None] * routed + slope[None] * raw.astype(jnp.float32) + constant[None]
    return wide.astype(raw.dtype)


def patch_gram(images: Rows, *, grid: Grid) -> Float[Array, "columns columns"]:
    patches = _first_patches(images, grid)
    return _wide_product(patches.T, patches)


def first_block(images: Rows, weights: Rows, factor: Channels, shift: Channels, *, grid: Grid) -> Rows:
    raw = _wide_product(_first_patches(images, grid), weights)
    return normalise_pool(raw, factor, shift, grid=grid).astype(images.dtype)


def first_block_gradient(
    images: Rows, weights: Rows, cotangent: Rows, factor: Channels, shift: Channels, *, grid: Grid
) -> Rows:
    patches = _first_patches(images, grid)
    parts = _routed(_wide_product(patches, weights), cotangent, factor, shift, grid)
    return _wide_product(patches.T, _interleave(parts, grid).astype(images.dtype))


# Images and matrices.


def grid_of(images: Images) -> Grid:
    return Grid(*images.shape[:3])


def flat(images: Images) -> Rows:
    return images.reshape(-1, images.shape[-1])


def unflat(rows: Rows, grid: Grid) -> Images:
    return rows.reshape(grid.images, grid.height, grid.width, -1)


def _corners(rows: Rows, grid: Grid) -> list[Rows]:
    """The four pixels of every window, a matrix for each."""
    pooled = grid.pooled
    even = unflat(rows, grid)[:, : 2 * pooled.height, : 2 * pooled.width]
    tiles = even.reshape(grid.images, pooled.height, 2, pooled.width, 2, -1)
    return [flat(tiles[:, :, row, :, column]) for row in (0, 1) for column in (0, 1)]


def _normalised(raw: Rows, factor: Channels, shift: Channels, grid: Grid) -> list[Rows]:
    return [pixels.astype(jnp.float32) * factor[None] + shift[None] for pixels in _corners(raw, grid)]


def _largest(values: list[Rows]) -> Rows:
    return functools.reduce(lambda best, value: jnp.where(best >= value, best, value), values)


def _routed(raw: Rows, cotangent: Rows, factor: Channels, shift: Channels, grid: Grid) -> list[Rows]:
    """What each corner gets of the cotangent."""
    values = _normalised(raw, factor, shift, grid)
    arriving = jnp.where(_largest(values) > 0, cotangent.astype(jnp.float32), 0)
    parts = []
    for index, value in enumerate(values):
        later = jnp.ones(value.shape, bool)
        for other, rival in enumerate(values):
            later &= (value > rival) if other < index else (value >= rival)
        parts.append(jnp.where(later, arriving, 0))
    return parts


def _interleave(parts: list[Rows], grid: Grid) -> Rows:
    """The four corners at their places in the image, and zeros where pooling left out a row or column."""
    pooled = grid.pooled
    lines = [jnp.stack([unflat(part, pooled) for part in parts[start : start + 2]], axis=3) for start in (0, 2)]
    even = jnp.stack(lines, axis=2).reshape(grid.images, 2 * pooled.height, 2 * pooled.width, -1)
    return flat(jnp.pad(even, ((0, 0), (0, grid.height % 2), (0, grid.width % 2), (0, 0))))


def _first_patches(images: Rows, grid: Grid) -> Rows:
    """With a column of ones after those of the nine pixels, then zeros."""
    patches = flat(patches_of(unflat(images, grid)))
    padded = jnp.pad(patches, ((0, 0), (0, patch_columns(images.shape[1]) - patches.shape[1])))
    return padded.at[:, patches.shape[1]].set(1)


def _wide_product(left: Rows, right: Rows) -> Rows:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)
