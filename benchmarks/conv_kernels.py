"""GPU kernels for a block of the convolutional network: 3x3 convolution, batch norm, 2x2 max-pooling and ReLU.

Every function is about one task; `vmap` over tasks adds an axis to the grid. Images are matrices here, a row per pixel
(images x height x width) and a column per channel. A program of the grid works on `tile` rows; since 28 x 28 pixels are
not a power of two, tiles run across the borders of images and the last one is masked.

The first block is different. Its patches have 9 numbers a pixel, its output 64, so the output is never stored: its
statistics follow from the patches' Gram matrix, and the forward and backward passes compute it again.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

EPSILON = 1e-3
TAPS = 9
INTERPRET = False
"""Run kernels in Python, for tests on a CPU."""


@dataclass(frozen=True)
class Tiling:
    """How a kernel cuts its work: rows a tile, warps a program, stages of the pipeline of loads."""

    tile: int
    warps: int = 4
    stages: int = 2
    unroll: bool = False
    """Write the nine taps of a convolution out, instead of a loop that the compiler pipelines."""
    taps: int = 3
    """Of the kernel's gradient: how many of the nine taps a program computes (1, 3 or 9)."""
    splits: int = 4
    """Of sums over all pixels: into how many parts they are cut."""


@dataclass(frozen=True)
class Grid:
    """The pixels of a task's images."""

    images: int
    height: int
    width: int

    @property
    def pixels(self) -> int:
        return self.images * self.height * self.width

    @property
    def pooled(self) -> "Grid":
        return Grid(self.images, self.height // 2, self.width // 2)

    @property
    def windows(self) -> "Grid":
        """Of 2x2 pixels, with the odd ones at the border that pooling leaves out."""
        return Grid(self.images, -(-self.height // 2), -(-self.width // 2))


def convolve(inputs, kernel, grid: Grid, tiling: Tiling, transposed=False):
    """[pixels, channels] by [3, 3, channels, filters], and for every tile the sums of the outputs and their squares.

    Transposed, it is the gradient with respect to the inputs: filters go in and channels come out.
    """
    channels, filters = kernel.shape[2:]
    outputs = channels if transposed else filters
    tiles = pl.cdiv(grid.pixels, tiling.tile)
    return _call(
        functools.partial(_convolve, grid=grid, tiling=tiling, transposed=transposed),
        grid=(tiles,),
        inputs=(inputs, kernel.reshape(TAPS, channels, filters)),
        outputs=[_whole((grid.pixels, outputs), inputs.dtype), _per_tile((tiles, 2, outputs))],
        tiling=tiling,
        name="convolve_transposed" if transposed else "convolve",
    )


def kernel_gradient(inputs, cotangent, grid: Grid, tiling: Tiling):
    """The convolution's gradient with respect to its kernel, in float32."""
    channels, filters = inputs.shape[1], cotangent.shape[1]
    steps = pl.cdiv(grid.pixels, tiling.tile * tiling.splits)
    block = (None, tiling.taps, channels, filters)
    parts = jax.ShapeDtypeStruct((tiling.splits, TAPS, channels, filters), jnp.float32)
    [partial] = _call(
        functools.partial(_kernel_gradient, grid=grid, tiling=tiling, steps=steps),
        grid=(TAPS // tiling.taps, tiling.splits),
        inputs=(inputs, cotangent),
        outputs=[(parts, pl.BlockSpec(block, lambda taps, split: (split, taps, 0, 0)))],
        tiling=tiling,
        name="kernel_gradient",
    )
    return jnp.sum(partial, axis=0).reshape(3, 3, channels, filters)


def normalise_pool(raw, factor, shift, grid: Grid, tiling: Tiling):
    """ReLU(pool(factor * raw + shift)): [pixels, channels] to [pooled pixels, channels]."""
    channels = raw.shape[1]
    [pooled] = _call(
        functools.partial(_normalise_pool, grid=grid, tiling=tiling),
        grid=(pl.cdiv(grid.pooled.pixels, tiling.tile),),
        inputs=(raw, jnp.stack([factor, shift])),
        outputs=[_whole((grid.pooled.pixels, channels), raw.dtype)],
        tiling=tiling,
        name="normalise_pool",
    )
    return pooled


def pool_gradient_sums(raw, cotangent, factor, shift, mean, inverse, grid: Grid, tiling: Tiling):
    """Sums over pixels of the gradient with respect to the normalised pixels: plain, and times (raw - mean) inverse."""
    channels = raw.shape[1]
    tiles = pl.cdiv(grid.pooled.pixels, tiling.tile)
    [sums] = _call(
        functools.partial(_pool_gradient_sums, grid=grid, tiling=tiling),
        grid=(tiles,),
        inputs=(raw, cotangent, jnp.stack([factor, shift, mean, inverse])),
        outputs=[_per_tile((tiles, 2, channels))],
        tiling=tiling,
        name="pool_gradient_sums",
    )
    return jnp.sum(sums, axis=0)


def pool_gradient(raw, cotangent, factor, shift, slope, constant, grid: Grid, tiling: Tiling):
    """The gradient with respect to `raw`: factor * (gradient of the normalised pixel) + slope * raw + constant."""
    channels = raw.shape[1]
    [gradient] = _call(
        functools.partial(_pool_gradient, grid=grid, tiling=tiling),
        grid=(pl.cdiv(grid.windows.pixels, tiling.tile),),
        inputs=(raw, cotangent, jnp.stack([factor, shift, slope, constant])),
        outputs=[_whole((grid.pixels, channels), raw.dtype)],
        tiling=tiling,
        name="pool_gradient",
    )
    return gradient


def patch_gram(images, grid: Grid, tiling: Tiling):
    """PᵀP of the patches P, which have a column of ones after those of the nine pixels (times channels)."""
    columns = patch_columns(images.shape[1])
    steps = pl.cdiv(grid.pixels, tiling.tile * tiling.splits)
    [partial] = _call(
        functools.partial(_patch_gram, grid=grid, channels=images.shape[1], tiling=tiling, steps=steps),
        grid=(tiling.splits,),
        inputs=(images.reshape(-1),),
        outputs=[_per_tile((tiling.splits, columns, columns))],
        tiling=tiling,
        name="patch_gram",
    )
    return jnp.sum(partial, axis=0)


def first_block(images, kernel, factor, shift, grid: Grid, tiling: Tiling):
    """ReLU(pool(factor * (P kernel) + shift)) for [pixels, channels] images and a [columns, filters] kernel."""
    [pooled] = _call(
        functools.partial(_first_block, grid=grid, channels=images.shape[1], tiling=tiling),
        grid=(pl.cdiv(grid.pooled.pixels, tiling.tile),),
        inputs=(images.reshape(-1), kernel, jnp.stack([factor, shift])),
        outputs=[_whole((grid.pooled.pixels, kernel.shape[1]), images.dtype)],
        tiling=tiling,
        name="first_block",
    )
    return pooled


def first_block_gradient(images, kernel, cotangent, factor, shift, grid: Grid, tiling: Tiling):
    """PᵀD for the gradient D with respect to the normalised pixels; its row of ones holds the sums of D."""
    columns, filters = kernel.shape
    steps = pl.cdiv(grid.pooled.pixels, tiling.tile * tiling.splits)
    [partial] = _call(
        functools.partial(_first_block_gradient, grid=grid, channels=images.shape[1], tiling=tiling, steps=steps),
        grid=(tiling.splits,),
        inputs=(images.reshape(-1), kernel, cotangent, jnp.stack([factor, shift])),
        outputs=[_per_tile((tiling.splits, columns, filters))],
        tiling=tiling,
        name="first_block_gradient",
    )
    return jnp.sum(partial, axis=0)


def patch_columns(channels: int) -> int:
    """Columns of a patch and one of ones, as a power of two."""
    return max(16, pl.next_power_of_2(TAPS * channels + 1))


# The kernels proper. Their arguments are references to whole arrays unless a specification cuts them.


def _convolve(inputs, kernel, outputs, sums, *, grid: Grid, tiling: Tiling, transposed: bool):
    pixel = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)

    def add_tap(tap, total):
        shifted = _load_shifted(inputs, pixel, tap, grid)
        weights = kernel[TAPS - 1 - tap if transposed else tap]
        return total + _dot(shifted, weights, (1, 1 if transposed else 0))

    total = jnp.zeros((tiling.tile, outputs.shape[1]), jnp.float32)
    if tiling.unroll:
        for tap in range(TAPS):
            total = add_tap(tap, total)
    else:
        total = jax.lax.fori_loop(0, TAPS, add_tap, total)
    _store(outputs, pixel, total.astype(outputs.dtype), pixel < grid.pixels)
    # Rows beyond the last pixel are zero.
    sums[0, :] = jnp.sum(total, axis=0)
    sums[1, :] = jnp.sum(total * total, axis=0)


def _kernel_gradient(inputs, cotangent, gradient, *, grid: Grid, tiling: Tiling, steps: int):
    first_tap = pl.program_id(0) * tiling.taps
    first_pixel = pl.program_id(1) * (steps * tiling.tile)

    def add_tile(step, totals):
        pixel = first_pixel + step * tiling.tile + jnp.arange(tiling.tile)
        rows = _load(cotangent, pixel, pixel < grid.pixels)
        return tuple(
            total + _dot(_load_shifted(inputs, pixel, first_tap + tap, grid), rows, (0, 0))
            for tap, total in enumerate(totals)
        )

    zeros = jnp.zeros((inputs.shape[1], cotangent.shape[1]), jnp.float32)
    totals = jax.lax.fori_loop(0, steps, add_tile, (zeros,) * tiling.taps)
    for tap, total in enumerate(totals):
        gradient[tap, :, :] = total


def _normalise_pool(raw, coefficients, pooled, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    _, best, _ = _pool(raw, coefficients, window, grid, grid.pooled)
    values = jnp.maximum(best, 0.0).astype(pooled.dtype)
    _store(pooled, window, values, window < grid.pooled.pixels)


def _pool_gradient_sums(raw, cotangent, coefficients, sums, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    pixels, best, winner = _pool(raw, coefficients, window, grid, grid.pooled)
    passed = _passed(cotangent, window, best, window < grid.pooled.pixels)
    chosen = functools.reduce(lambda x, k: jnp.where(winner == k, pixels[k], x), (1, 2, 3), pixels[0])
    mean, inverse = coefficients[2, :], coefficients[3, :]
    sums[0, :] = jnp.sum(passed, axis=0)
    sums[1, :] = jnp.sum(passed * (chosen - mean[None]) * inverse[None], axis=0)


def _pool_gradient(raw, cotangent, coefficients, gradient, *, grid: Grid, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    windows, pooled = grid.windows, grid.pooled
    image, row, column = _split(window, windows)
    pixels, best, winner = _pool(raw, coefficients, window, grid, windows)
    inside = (window < windows.pixels) & (row < pooled.height) & (column < pooled.width)
    passed = _passed(cotangent, _join(image, row, column, pooled), best, inside)
    factor, slope, constant = (coefficients[index, :][None] for index in (0, 2, 3))
    for corner in range(4):
        pixel, valid = _corner(window, corner, grid, windows)
        value = factor * jnp.where(winner == corner, passed, 0.0) + slope * pixels[corner] + constant
        _store(gradient, pixel, value.astype(gradient.dtype), valid)


def _patch_gram(images, gram, *, grid: Grid, channels: int, tiling: Tiling, steps: int):
    first = pl.program_id(0) * (steps * tiling.tile)

    def add_tile(step, total):
        pixel = first + step * tiling.tile + jnp.arange(tiling.tile)
        patches = _load_patches(images, pixel, pixel < grid.pixels, grid, channels)
        return total + _dot(patches, patches, (0, 0))

    gram[:, :] = jax.lax.fori_loop(0, steps, add_tile, jnp.zeros(gram.shape, jnp.float32))


def _first_block(images, kernel, coefficients, pooled, *, grid: Grid, channels: int, tiling: Tiling):
    window = pl.program_id(0) * tiling.tile + jnp.arange(tiling.tile)
    _, best, _ = _first_pool(images, kernel[:, :], coefficients, window, grid, channels)
    values = jnp.maximum(best, 0.0).astype(pooled.dtype)
    _store(pooled, window, values, window < grid.pooled.pixels)


def _first_block_gradient(
    images, kernel, cotangent, coefficients, gradient, *, grid: Grid, channels: int, tiling: Tiling, steps: int
):
    first = pl.program_id(0) * (steps * tiling.tile)
    weights = kernel[:, :]

    def add_tile(step, total):
        window = first + step * tiling.tile + jnp.arange(tiling.tile)
        patches, best, winner = _first_pool(images, weights, coefficients, window, grid, channels)
        passed = _passed(cotangent, window, best, window < grid.pooled.pixels)
        for corner, patch in enumerate(patches):
            chosen = jnp.where(winner == corner, passed, 0.0).astype(patch.dtype)
            total = total + _dot(patch, chosen, (0, 0))
        return total

    gradient[:, :] = jax.lax.fori_loop(0, steps, add_tile, jnp.zeros(gradient.shape, jnp.float32))


# What the kernels share.


def _load(source, rows, mask):
    """Rows of a matrix, zero where they are masked."""
    return plgpu.load(source.at[rows[:, None], _columns(source)], mask=mask[:, None], other=0.0)


def _store(target, rows, values, mask):
    plgpu.store(target.at[rows[:, None], _columns(target)], values, mask=mask[:, None])


def _columns(matrix):
    # An array and not a slice: the interpreter knows no indexing that mixes them.
    return jnp.arange(matrix.shape[1])[None]


def _load_shifted(source, pixel, tap, grid: Grid):
    """Rows of `source` at the pixels' neighbours in the direction of `tap`, zero outside the image."""
    row, column = _divide(tap, 3)
    down, right = row - 1, column - 1
    inside = (pixel < grid.pixels) & _inside(pixel, down, right, grid)
    return _load(source, pixel + (down * grid.width + right), inside)


def _load_patches(images, pixel, valid, grid: Grid, channels: int):
    """[pixels, columns]: the nine neighbours with their channels, then a one, then zeros."""
    position = jnp.arange(patch_columns(channels))[None]
    tap, channel = _divide(position, channels)
    row, column = _divide(tap, 3)
    down, right = row - 1, column - 1
    pixel, valid = pixel[:, None], valid[:, None]
    inside = valid & (tap < TAPS) & _inside(pixel, down, right, grid)
    source = (pixel + down * grid.width + right) * channels + channel
    patches = plgpu.load(images.at[source], mask=inside, other=0.0)
    return jnp.where(valid & (position == TAPS * channels), 1.0, patches.astype(jnp.float32)).astype(patches.dtype)


def _pool(raw, coefficients, window, grid: Grid, windows: Grid):
    """Of every window: its four pixels, the largest after normalisation and which it is, the first in a tie."""
    factor, shift = coefficients[0, :][None], coefficients[1, :][None]
    pixels = []
    for corner in range(4):
        pixel, valid = _corner(window, corner, grid, windows)
        pixels.append(_load(raw, pixel, valid).astype(jnp.float32))
    return pixels, *_largest([factor * pixel + shift for pixel in pixels])


def _first_pool(images, weights, coefficients, window, grid: Grid, channels: int):
    """The same for the first block, with the four patches instead of the pixels."""
    factor, shift = coefficients[0, :][None], coefficients[1, :][None]
    patches = []
    for corner in range(4):
        pixel, valid = _corner(window, corner, grid, grid.pooled)
        patches.append(_load_patches(images, pixel, valid, grid, channels))
    return patches, *_largest([factor * _dot(patch, weights, (1, 0)) + shift for patch in patches])


def _largest(values):
    best, winner = values[0], jnp.zeros(values[0].shape, jnp.int32)
    for index, value in enumerate(values[1:], start=1):
        winner = jnp.where(best >= value, winner, index)
        best = jnp.where(best >= value, best, value)
    return best, winner


def _passed(cotangent, window, best, valid):
    """The cotangent where ReLU lets it pass."""
    rows = _load(cotangent, window, valid).astype(jnp.float32)
    return jnp.where(best > 0, rows, 0.0)


def _corner(window, corner: int, grid: Grid, windows: Grid):
    """The pixel at a corner (0 to 3) of each window, and whether there is one."""
    image, row, column = _split(window, windows)
    row, column = 2 * row + corner // 2, 2 * column + corner % 2
    valid = (window < windows.pixels) & (row < grid.height) & (column < grid.width)
    return _join(image, row, column, grid), valid


def _inside(pixel, down, right, grid: Grid):
    _, row, column = _split(pixel, grid)
    row, column = row + down, column + right
    return (row >= 0) & (row < grid.height) & (column >= 0) & (column < grid.width)


def _split(pixel, grid: Grid):
    line, column = _divide(pixel, grid.width)
    return *_divide(line, grid.height), column


def _divide(number, by: int):
    # Python's // and % take more operations, to be right for negative numbers.
    return divmod(number, by) if isinstance(number, int) else (jax.lax.div(number, by), jax.lax.rem(number, by))


def _join(image, row, column, grid: Grid):
    return (image * grid.height + row) * grid.width + column


def _dot(left, right, contracted):
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _whole(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype), pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


def _per_tile(shape):
    block = (None, *shape[1:])
    return jax.ShapeDtypeStruct(shape, jnp.float32), pl.BlockSpec(block, lambda tile: (tile, *(0,) * (len(shape) - 1)))


def _call(kernel, *, grid, inputs, outputs, tiling: Tiling, name: str):
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[_whole(array.shape, array.dtype)[1] for array in inputs],
        out_shape=[shape for shape, _ in outputs],
        out_specs=[spec for _, spec in outputs],
        compiler_params=plgpu.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=INTERPRET,
        name=name,
    )(*inputs)
