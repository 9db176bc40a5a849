"""Kernels of a block: 3x3 convolution, batch norm, 2x2 max-pooling and ReLU, and their gradients."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from .pixels import (
    TAPS,
    Grid,
    Tiling,
    call,
    corner_of,
    dot,
    join,
    largest,
    load,
    load_shifted,
    passed,
    per_tile,
    split,
    store,
    whole,
)

Rows = Float[Array, "_ _"]
Channels = Float[Array, "_"]
Kernel = Float[Array, "3 3 _ _"]


def convolve(inputs: Rows, kernel: Kernel, *, grid: Grid, tiling: Tiling) -> tuple[Rows, Float[Array, "2 filters"]]:
    """The convolution, and the sums over pixels of its outputs and of their squares."""
    outputs, sums = _convolve(inputs, kernel, grid, tiling, transposed=False)
    return outputs, jnp.sum(sums, axis=0)


def convolve_transposed(cotangent: Rows, kernel: Kernel, *, grid: Grid, tiling: Tiling) -> Rows:
    """The convolution's gradient with respect to its inputs."""
    return _convolve(cotangent, kernel, grid, tiling, transposed=True)[0]


def kernel_gradient(inputs: Rows, cotangent: Rows, *, grid: Grid, tiling: Tiling) -> Kernel:
    """The convolution's gradient with respect to its kernel, in float32."""
    channels, filters = inputs.shape[1], cotangent.shape[1]
    steps = pl.cdiv(grid.pixels, tiling.tile * tiling.splits)
    block = (None, tiling.taps, channels, filters)
    parts = jax.ShapeDtypeStruct((tiling.splits, TAPS, channels, filters), jnp.float32)
    [partial] = call(
        functools.partial(_kernel_gradient_kernel, grid=grid, tiling=tiling, steps=steps),
        grid=(TAPS // tiling.taps, tiling.splits),
        inputs=(inputs, cotangent),
        outputs=[(parts, pl.BlockSpec(block, lambda taps, split: (split, taps, 0, 0)))],
        tiling=tiling,
        name="kernel_gradient",
    )
    return jnp.sum(partial, axis=0).reshape(3, 3, channels, filters)


def normalise_pool(raw: Rows, factor: Channels, shift: Channels, *, grid: Grid, tiling: Tiling) -> Rows:
    """ReLU(pool(factor * raw + shift)), a row per pooled pixel."""
    [pooled] = call(
        functools.partial(_normalise_pool_kernel, grid=grid, tiling=tiling),
        grid=(pl.cdiv(grid.pooled.pixels, tiling.tile),),
        inputs=(raw, jnp.stack([factor, shift])),
        outputs=[whole((grid.pooled.pixels, raw.shape[1]), raw.dtype)],
        tiling=tiling,
        name="normalise_pool",
    )
    return pooled


def pool_gradient_sums(
    raw: Rows,
    cotangent: Rows,
    factor: Channels,
    shift: Channels,
    mean: Channels,
    inverse: Channels,
    *,
    grid: Grid,
    tiling: Tiling,
) -> Float[Array, "2 channels"]:
    """Sums over pixels of the gradient with respect to the normalised pixels: plain, and times (raw - mean) inverse."""
    tiles = pl.cdiv(grid.pooled.pixels, tiling.tile)
    [sums] = call(
        functools.partial(_pool_gradient_sums_kernel, grid=grid, tiling=tiling),
        grid=(tiles,),
        inputs=(raw, cotangent, jnp.stack([factor, shift, mean, inverse])),
        outputs=[per_tile((tiles, 2, raw.shape[1]))],
        tiling=tiling,
        name="pool_gradient_sums",
    )
    return jnp.sum(sums, axis=0)


def pool_gradient(
    raw: Rows,
    cotangent: Rows,
    factor: Channels,
    shift: Channels,
    slope: Channels,
    constant: Channels,
    *,
    grid: Grid,
    tiling: Tiling,
) -> Rows:
    """The gradient with respect to `raw`: factor * (gradient of the normalised pixel) + slope * raw + constant."""
    [gradient] = call(
        functools.partial(_pool_gradient_kernel, grid=grid, tiling=tiling),
        grid=(pl.cdiv(grid.windows.pixels, tiling.tile),),
        inputs=(raw, cotangent, jnp.stack([factor, shift, slope, constant])),
        outputs=[whole((grid.pixels, raw.shape[1]), raw.dtype)],
        tiling=tiling,
        name="pool_gradient",
    )
    return gradient


def _convolve(inputs: Rows, kernel: Kernel, grid: Grid, tiling: Tiling, *, transposed: bool) -> Sequence[Array]:
    channels, filters = kernel.shape[2:]
    outputs = channels if transposed else filters
    tiles = pl.cdiv(grid.pixels, tiling.tile)
    return call(
        functools.partial(_convolve_kernel, grid=grid, tiling=tiling, transposed=transposed),
        grid=(tiles,),
        inputs=(inputs, kernel.reshape(TAPS, channels, filters)),
        outputs=[whole((grid.pixels, outputs), inputs.dtype), per_tile((tiles, 2, outputs))],
        tiling=tiling,
        name="convolve_transposed" if transposed else "convolve",
    )


# The kernels proper. Their arguments are references to whole arrays unless a specification cuts them.


def _convolve_kernel(inputs, kernel, outputs, sums, *, grid: Grid, tiling: Tiling, transposed: bool):
    pixel = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)

    def add_tap(tap, total):
        weights = kernel[TAPS - 1 - tap if transposed else tap]
        return total + dot(load_shifted(inputs, pixel, tap, grid), weights, (1, 1 if transposed else 0))

    # A loop and not nine lines, so that the compiler loads a tap while it multiplies another.
    total = jax.lax.fori_loop(0, TAPS, add_tap, jnp.zeros((tiling.tile, outputs.shape[1]), jnp.float32))
    store(outputs, pixel, total.astype(outputs.dtype), pixel < grid.pixels)
    # Rows beyond the last pixel are zero.
    sums[0, :] = jnp.sum(total, axis=0)
    sums[1, :] = jnp.sum(total * total, axis=0)


def _kernel_gradient_kernel(inputs, cotangent, gradient, *, grid: Grid, tiling: Tiling, steps: int):
    first_tap = pl.program_id(0) * tiling.taps
    first_pixel = pl.program_id(1) * (steps * tiling.tile)

    def add_tile(step, totals):
        pixel = first_pixel + step * tiling.tile + jnp.arange(tiling.tile)
        rows = load(cotangent, pixel, pixel < grid.pixels)
        return tuple(
            total + dot(load_shifted(inputs, pixel, first_tap + tap, grid), rows, (0, 0))
            for tap, total in enumerate(totals)
        )

    zeros = jnp.zeros((inputs.shape[1], cotangent.shape[1]), jnp.float32)
    totals = jax.lax.fori_loop(0, steps, add_tile, (zeros,) * tiling.taps)
    for tap, total in enumerate(totals):
        gradient[tap, :, :] = total


def _normalise_pool_kernel(raw, coefficients, pooled, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    _, best, _ = _pool(raw, coefficients, window, grid, grid.pooled)
    store(pooled, window, jnp.maximum(best, 0.0).astype(pooled.dtype), window < grid.pooled.pixels)


def _pool_gradient_sums_kernel(raw, cotangent, coefficients, sums, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    pixels, best, winner = _pool(raw, coefficients, window, grid, grid.pooled)
    gradient = passed(cotangent, window, best, window < grid.pooled.pixels)
    chosen = functools.reduce(lambda x, k: jnp.where(winner == k, pixels[k], x), (1, 2, 3), pixels[0])
    mean, inverse = coefficients[2, :], coefficients[3, :]
    sums[0, :] = jnp.sum(gradient, axis=0)
    sums[1, :] = jnp.sum(gradient * (chosen - mean[None]) * inverse[None], axis=0)


def _pool_gradient_kernel(raw, cotangent, coefficients, gradient, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    windows, pooled = grid.windows, grid.pooled
    image, row, column = split(window, windows)
    pixels, best, winner = _pool(raw, coefficients, window, grid, windows)
    inside = (window < windows.pixels) & (row < pooled.height) & (column < pooled.width)
    arriving = passed(cotangent, join(image, row, column, pooled), best, inside)
    factor, slope, constant = (coefficients[index, :][None] for index in (0, 2, 3))
    for corner in range(4):
        pixel, valid = corner_of(window, corner, grid, windows)
        value = factor * jnp.where(winner == corner, arriving, 0.0) + slope * pixels[corner] + constant
        store(gradient, pixel, value.astype(gradient.dtype), valid)


def _pool(raw, coefficients, window, grid: Grid, windows: Grid):
    """Of every window: its four pixels, the largest after normalisation and which it is."""
    factor, shift = coefficients[0, :][None], coefficients[1, :][None]
    pixels = []
    for corner in range(4):
        pixel, valid = corner_of(window, corner, grid, windows)
        pixels.append(load(raw, pixel, valid).astype(jnp.float32))
    return pixels, *largest([factor * pixel + shift for pixel in pixels])
