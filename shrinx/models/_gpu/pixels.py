"""What the kernels share: images as matrices, how work is cut into tiles, loads and stores of rows of pixels.

Every function is about one task; `vmap` over tasks adds an axis to the grid. Images are matrices here, a row per pixel
(images x height x width) and a column per channel. A program of the grid works on `tile` rows; since 28 x 28 pixels are
not a power of two, tiles run across the borders of images and the last one is masked.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

TAPS = 9

# JAX 0.11 says so for every kernel. Once the backend is gone its import fails, and the network does without.
warnings.filterwarnings("ignore", message="The Pallas Triton backend is deprecated")


@dataclass(frozen=True)
class Tiling:
    """How a kernel cuts its work: rows a tile, warps a program, stages of the pipeline of loads."""

    tile: int
    warps: int = 4
    stages: int = 2
    taps: int = 3
    """Of the convolution kernel's gradient: how many of the nine taps a program computes (1, 3 or 9)."""
    splits: int = 4
    """Of sums over all pixels: into how many parts they are cut."""
    interpret: bool = False
    """Run by Python, for tests on a CPU."""


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


def call(
    kernel: Callable[..., None],
    *,
    grid: tuple[int, ...],
    inputs: Sequence[jax.Array],
    outputs: Sequence[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
    tiling: Tiling,
    name: str,
) -> Sequence[jax.Array]:
    """Run `kernel(*inputs, *outputs)` for every point of the grid, on references to the arrays."""
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[whole(array.shape, array.dtype)[1] for array in inputs],
        out_shape=[shape for shape, _ in outputs],
        out_specs=[spec for _, spec in outputs],
        compiler_params=plgpu.CompilerParams(num_warps=tiling.warps, num_stages=tiling.stages),
        interpret=tiling.interpret,
        name=name,
    )(*inputs)


def whole(shape: tuple[int, ...], dtype: Any) -> tuple[jax.ShapeDtypeStruct, pl.BlockSpec]:
    """An array that every program sees all of."""
    return jax.ShapeDtypeStruct(shape, dtype), pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


def per_tile(shape: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, pl.BlockSpec]:
    """An array of which a program sees the part along the first axis that is its own."""
    block = (None, *shape[1:])
    return jax.ShapeDtypeStruct(shape, jnp.float32), pl.BlockSpec(block, lambda tile: (tile, *(0,) * (len(shape) - 1)))


def load(source, rows, mask):
    """Rows of a matrix, zero where they are masked."""
    return plgpu.load(source.at[rows[:, None], _columns(source)], mask=mask[:, None], other=0.0)


def store(target, rows, values, mask):
    plgpu.store(target.at[rows[:, None], _columns(target)], values, mask=mask[:, None])


def _columns(matrix):
    # An array and not a slice: the interpreter knows no indexing that mixes them.
    return jnp.arange(matrix.shape[1])[None]


def load_shifted(source, pixel, tap, grid: Grid):
    """Rows of `source` at the pixels' neighbours in the direction of `tap`, zero outside the image."""
    row, column = divide(tap, 3)
    down, right = row - 1, column - 1
    valid = (pixel < grid.pixels) & inside(pixel, down, right, grid)
    return load(source, pixel + (down * grid.width + right), valid)


def corner_of(window, corner: int, grid: Grid, windows: Grid):
    """The pixel at a corner (0 to 3) of each window, and whether there is one."""
    image, row, column = split(window, windows)
    row, column = 2 * row + corner // 2, 2 * column + corner % 2
    valid = (window < windows.pixels) & (row < grid.height) & (column < grid.width)
    return join(image, row, column, grid), valid


def largest(values):
    """Of four corners: the largest and which it is, the first in a tie."""
    best, winner = values[0], jnp.zeros(values[0].shape, jnp.int32)
    for index, value in enumerate(values[1:], start=1):
        winner = jnp.where(best >= value, winner, index)
        best = jnp.where(best >= value, best, value)
    return best, winner


def passed(cotangent, window, best, valid):
    """The cotangent where ReLU lets it pass."""
    rows = load(cotangent, window, valid).astype(jnp.float32)
    return jnp.where(best > 0, rows, 0.0)


def inside(pixel, down, right, grid: Grid):
    """Whether the neighbour of a pixel is in the same image."""
    _, row, column = split(pixel, grid)
    row, column = row + down, column + right
    return (row >= 0) & (row < grid.height) & (column >= 0) & (column < grid.width)


def split(pixel, grid: Grid):
    """Image, row and column."""
    line, column = divide(pixel, grid.width)
    return *divide(line, grid.height), column


def join(image, row, column, grid: Grid):
    return (image * grid.height + row) * grid.width + column


def divide(number, by: int):
    # Python's // and % take more operations, to be right for negative numbers.
    return divmod(number, by) if isinstance(number, int) else (jax.lax.div(number, by), jax.lax.rem(number, by))


def dot(left, right, contracted: tuple[int, int]):
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)
