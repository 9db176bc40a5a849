"""Kernels of the first block.

Its patches have 9 numbers a pixel and channel, its output 64, so the output is never stored: its statistics follow from
the patches' Gram matrix, and the forward and backward passes compute it again.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from .block import Channels, Rows
from .pixels import TAPS, Grid, Tiling, call, corner_of, divide, dot, inside, largest, passed, per_tile, store, whole


def patch_columns(channels: int) -> int:
    """Columns of a patch and one of ones, as a power of two."""
    return max(16, pl.next_power_of_2(TAPS * channels + 1))


def patch_gram(images: Rows, *, grid: Grid, tiling: Tiling) -> Float[Array, "columns columns"]:
    """PᵀP of the patches P, which have a column of ones after those of the nine pixels (times channels)."""
    columns = patch_columns(images.shape[1])
    steps = pl.cdiv(grid.pixels, tiling.tile * tiling.splits)
    [partial] = call(
        functools.partial(_patch_gram_kernel, grid=grid, channels=images.shape[1], tiling=tiling, steps=steps),
        grid=(tiling.splits,),
        inputs=(images.reshape(-1),),
        outputs=[per_tile((tiling.splits, columns, columns))],
        tiling=tiling,
        name="patch_gram",
    )
    return jnp.sum(partial, axis=0)


def first_block(images: Rows, weights: Rows, factor: Channels, shift: Channels, *, grid: Grid, tiling: Tiling) -> Rows:
    """ReLU(pool(factor * (P weights) + shift)) for weights with a row per column of P."""
    [pooled] = call(
        functools.partial(_first_block_kernel, grid=grid, channels=images.shape[1], tiling=tiling),
        grid=(pl.cdiv(grid.pooled.pixels, tiling.tile),),
        inputs=(images.reshape(-1), weights, jnp.stack([factor, shift])),
        outputs=[whole((grid.pooled.pixels, weights.shape[1]), images.dtype)],
        tiling=tiling,
        name="first_block",
    )
    return pooled


def first_block_gradient(
    images: Rows, weights: Rows, cotangent: Rows, factor: Channels, shift: Channels, *, grid: Grid, tiling: Tiling
) -> Rows:
    """PᵀD in float32, for the gradient D with respect to the normalised pixels; its row of ones holds the sums of D."""
    columns, filters = weights.shape
    steps = pl.cdiv(grid.pooled.pixels, tiling.tile * tiling.splits)
    [partial] = call(
        functools.partial(
            _first_block_gradient_kernel, grid=grid, channels=images.shape[1], tiling=tiling, steps=steps
        ),
        grid=(tiling.splits,),
        inputs=(images.reshape(-1), weights, cotangent, jnp.stack([factor, shift])),
        outputs=[per_tile((tiling.splits, columns, filters))],
        tiling=tiling,
        name="first_block_gradient",
    )
    return jnp.sum(partial, axis=0)


# The kernels proper.


def _patch_gram_kernel(images, gram, *, grid: Grid, channels: int, tiling: Tiling, steps: int):
    first = pl.program_id(0) * (steps * tiling.tile)

    def add_tile(step, total):
        pixel = first + step * tiling.tile + jnp.arange(tiling.tile)
        patches = _load_patches(images, pixel, pixel < grid.pixels, grid, channels)
        return total + dot(patches, patches, (0, 0))

    gram[:, :] = jax.lax.fori_loop(0, steps, add_tile, jnp.zeros(gram.shape, jnp.float32))


def _first_block_kernel(images, weights, coefficients, pooled, *, grid: Grid, channels: int, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    _, best, _ = _pool(images, weights[:, :], coefficients, window, grid, channels)
    store(pooled, window, jnp.maximum(best, 0.0).astype(pooled.dtype), window < grid.pooled.pixels)


def _first_block_gradient_kernel(
    images, weights, cotangent, coefficients, gradient, *, grid: Grid, channels: int, tiling: Tiling, steps: int
):
    first = pl.program_id(0) * (steps * tiling.tile)
    loaded = weights[:, :]

    def add_tile(step, total):
        window = first + step * tiling.tile + jnp.arange(tiling.tile)
        patches, best, winner = _pool(images, loaded, coefficients, window, grid, channels)
        arriving = passed(cotangent, window, best, window < grid.pooled.pixels)
        for corner, patch in enumerate(patches):
            chosen = jnp.where(winner == corner, arriving, 0.0).astype(patch.dtype)
            total = total + dot(patch, chosen, (0, 0))
        return total

    gradient[:, :] = jax.lax.fori_loop(0, steps, add_tile, jnp.zeros(gradient.shape, jnp.float32))


def _pool(images, weights, coefficients, window, grid: Grid, channels: int):
    """Of every window: its four patches, the largest of their outputs after normalisation and which it is."""
    factor, shift = coefficients[0, :][None], coefficients[1, :][None]
    patches = []
    for corner in range(4):
        pixel, valid = corner_of(window, corner, grid, grid.pooled)
        patches.append(_load_patches(images, pixel, valid, grid, channels))
    return patches, *largest([factor * dot(patch, weights, (1, 0)) + shift for patch in patches])


def _load_patches(images, pixel, valid, grid: Grid, channels: int):
    """[pixels, columns]: the nine neighbours with their channels, then a one, then zeros."""
    position = jnp.arange(patch_columns(channels))[None]
    tap, channel = divide(position, channels)
    row, column = divide(tap, 3)
    down, right = row - 1, column - 1
    pixel, valid = pixel[:, None], valid[:, None]
    loaded = valid & (tap < TAPS) & inside(pixel, down, right, grid)
    source = (pixel + down * grid.width + right) * channels + channel
    patches = plgpu.load(images.at[source], mask=loaded, other=0.0)
    return jnp.where(valid & (position == TAPS * channels), 1.0, patches.astype(jnp.float32)).astype(patches.dtype)
