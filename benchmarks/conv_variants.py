"""Ways to compute a block of the convolutional network and its gradient, for one task; `vmap` makes it several.

A `Variant` names how: the convolution, what follows it (batch norm, pooling, ReLU) and the first block, which has so
few channels that other ways are good. Parameters, statistics and gradients are float32, convolutions bfloat16.
"""

import functools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import conv_kernels as kernels
import jax
import jax.numpy as jnp
from conv_kernels import EPSILON, Grid, Tiling

CLASSES, FILTERS, BLOCKS = 20, 64, 4


class Tilings(NamedTuple):
    """For the kernels of one block; `first` serves the first block."""

    convolve: Tiling = Tiling(128, warps=4, stages=3)
    transposed: Tiling = Tiling(128, warps=4, stages=3)
    kernel_gradient: Tiling = Tiling(64, warps=4, stages=3, taps=3, splits=4)
    pool: Tiling = Tiling(32, warps=4)
    first: Tiling = Tiling(64, warps=4)
    first_gradient: Tiling = Tiling(64, warps=4, splits=16)
    gram: Tiling = Tiling(128, warps=4, splits=16)


@dataclass(frozen=True)
class Variant:
    convolution: Literal["patches", "flip", "rows", "library", "kernel"] = "patches"
    """Patches and one product, as the library; the same with a convolution as the gradient of its inputs; patches of
    three columns and three products, one per row; the library's grouped convolution; GPU kernels."""
    norm: Literal["auto", "hand", "bits", "kernel"] = "auto"
    """Derivatives by JAX; written by hand; by hand with the winners of pooling saved as bytes; GPU kernels."""
    first: Literal["same", "kernel"] = "same"
    """The first block like the others, or by its own kernels."""
    tilings: tuple[Tilings, ...] = (Tilings(),) * BLOCKS
    dtype: str = "bfloat16"


def init(key):
    *keys, last = jax.random.split(key, BLOCKS + 1)
    lecun = jax.nn.initializers.lecun_normal()
    params = {}
    for block, block_key in enumerate(keys):
        params[f"conv{block}"] = lecun(block_key, (3, 3, FILTERS if block else 1, FILTERS))
        params[f"norm{block}"] = jnp.ones(FILTERS), jnp.zeros(FILTERS)
    return {**params, "output": (lecun(last, (FILTERS, CLASSES)), jnp.zeros(CLASSES))}


def cross_entropy(variant: Variant, params, batch):
    images, labels = batch
    hidden = images.astype(variant.dtype)
    for block in range(BLOCKS):
        hidden = apply_block(variant, block, hidden, params[f"conv{block}"], *params[f"norm{block}"])
    kernel, bias = params["output"]
    logits = hidden.reshape(len(images), -1).astype(jnp.float32) @ kernel + bias[None]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


def apply_block(variant: Variant, block: int, inputs, kernel, scale, offset):
    tilings = variant.tilings[block]
    if block == 0 and variant.first == "kernel":
        return first_block(tilings, inputs, kernel, scale, offset)
    # Kernels of the other blocks want channels enough for a matrix product.
    narrow = inputs.shape[-1] < 16
    if variant.convolution == "kernel" and variant.norm == "kernel" and not narrow:
        return fused_block(tilings, inputs, kernel, scale, offset)
    convolution = "patches" if narrow and variant.convolution == "kernel" else variant.convolution
    raw = convolve(convolution, tilings, inputs, kernel.astype(variant.dtype))
    match variant.norm:
        case "auto":
            return norm_pool_auto(raw, scale, offset)
        case "kernel":
            return norm_pool_kernel(tilings, raw, scale, offset)
        case _:
            return norm_pool_hand(variant.norm == "bits", raw, scale, offset)


# Convolutions.


def convolve(name, tilings, inputs, kernel):
    match name:
        case "patches":
            return _patches_convolve(inputs, kernel)
        case "flip":
            return _flip_convolve(inputs, kernel)
        case "rows":
            return _rows_convolve(inputs, kernel)
        case "library":
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(inputs, kernel, (1, 1), "SAME", dimension_numbers=layout)
        case "kernel":
            return kernel_convolve(tilings, inputs, kernel)
    raise ValueError(name)


def _patches(inputs):
    height, width = inputs.shape[1:3]
    padded = jnp.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]
    return jnp.concatenate(shifted, axis=-1).reshape(-1, 9 * inputs.shape[-1])


def _patches_convolve(inputs, kernel):
    product = _patches(inputs) @ kernel.reshape(-1, kernel.shape[-1])
    return product.reshape(*inputs.shape[:-1], kernel.shape[-1])


@jax.custom_vjp
def _flip_convolve(inputs, kernel):
    return _patches_convolve(inputs, kernel)


def _flip_forward(inputs, kernel):
    return _patches_convolve(inputs, kernel), (inputs, kernel)


def _flip_backward(saved, cotangent):
    inputs, kernel = saved
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    gradient = jnp.matmul(_patches(inputs).T, rows).reshape(kernel.shape)
    flipped = jnp.swapaxes(jnp.flip(kernel, (0, 1)), 2, 3)
    return _patches_convolve(cotangent, flipped), gradient


_flip_convolve.defvjp(_flip_forward, _flip_backward)


def _rows_convolve(inputs, kernel):
    height, width, channels = inputs.shape[1:]
    padded = jnp.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
    wide = jnp.concatenate([padded[:, :, column : column + width] for column in range(3)], axis=-1)
    products = [
        wide[:, row : row + height].reshape(-1, 3 * channels) @ kernel[row].reshape(3 * channels, -1)
        for row in range(3)
    ]
    return sum(products).reshape(*inputs.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def kernel_convolve(tilings, inputs, kernel):
    return _kernel_convolve_forward(tilings, inputs, kernel)[0]


def _kernel_convolve_forward(tilings, inputs, kernel):
    raw, _ = kernels.convolve(flat(inputs), kernel, grid_of(inputs), tilings.convolve)
    return raw.reshape(*inputs.shape[:-1], -1), (inputs, kernel)


def _kernel_convolve_backward(tilings, saved, cotangent):
    inputs, kernel = saved
    grid, rows = grid_of(inputs), flat(cotangent)
    gradient, _ = kernels.convolve(rows, kernel, grid, tilings.transposed, transposed=True)
    kernel_gradient = kernels.kernel_gradient(flat(inputs), rows, grid, tilings.kernel_gradient)
    return gradient.reshape(inputs.shape), kernel_gradient.astype(kernel.dtype)


kernel_convolve.defvjp(_kernel_convolve_forward, _kernel_convolve_backward)


# Batch norm, pooling and ReLU.


def norm_pool_auto(raw, scale, offset):
    """As in the library."""
    wide = raw.astype(jnp.float32)
    mean = jnp.mean(wide, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(wide), axis=(0, 1, 2)) - jnp.square(mean)
    factor = scale * jax.lax.rsqrt(jnp.where(variance > 0, variance, 0) + EPSILON)
    normalised = (wide * spread(factor) + spread(offset - mean * factor)).astype(raw.dtype)
    return jax.nn.relu(functools.reduce(lambda best, x: jnp.where(best >= x, best, x), corners(normalised)))


def corners(inputs):
    images, height, width, channels = inputs.shape
    rows, columns = height // 2, width // 2
    tiles = inputs[:, : 2 * rows, : 2 * columns].reshape(images, rows, 2, columns, 2, channels)
    return [tiles[:, :, row, :, column] for row in (0, 1) for column in (0, 1)]


def moments(total, squares, count, scale, offset):
    """Mean, inverse deviation, and the factor and shift that normalise, from sums."""
    mean = total / count
    inverse = jax.lax.rsqrt(jnp.maximum(squares / count - mean * mean, 0) + EPSILON)
    factor = scale * inverse
    return mean, inverse, factor, offset - mean * factor


def slope_and_constant(mean, inverse, factor, sums, count):
    """What a pixel's gradient takes from the mean and variance that depend on it: slope * pixel + constant."""
    slope = -factor * inverse * sums[1] / count
    return slope, -factor * sums[0] / count - slope * mean


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def norm_pool_hand(save_winner, raw, scale, offset):
    return _hand_forward(save_winner, raw, scale, offset)[0]


def _hand_forward(save_winner, raw, scale, offset):
    wide = raw.astype(jnp.float32)
    sums = jnp.sum(wide, axis=(0, 1, 2)), jnp.sum(jnp.square(wide), axis=(0, 1, 2))
    state = moments(*sums, raw.size // raw.shape[-1], scale, offset)
    best, winner = _hand_pool(raw, *state[2:])
    pooled = jax.nn.relu(best).astype(raw.dtype)
    # 4 where ReLU lets nothing pass.
    winner = jnp.where(best > 0, winner, 4).astype(jnp.uint8) if save_winner else None
    return pooled, (raw, state, winner)


def _hand_pool(raw, factor, shift):
    values = [pixel.astype(jnp.float32) * spread(factor) + spread(shift) for pixel in corners(raw)]
    best, winner = values[0], jnp.zeros(values[0].shape, jnp.int32)
    for index, value in enumerate(values[1:], start=1):
        winner = jnp.where(best >= value, winner, index)
        best = jnp.where(best >= value, best, value)
    return best, winner


def _hand_backward(save_winner, saved, cotangent):
    raw, (mean, inverse, factor, shift), winner = saved
    if not save_winner:
        best, winner = _hand_pool(raw, factor, shift)
        winner = jnp.where(best > 0, winner, 4)
    wide_cotangent = cotangent.astype(jnp.float32)
    parts = [jnp.where(winner == index, wide_cotangent, 0) for index in range(4)]
    passed = jnp.where(winner < 4, wide_cotangent, 0)
    chosen = sum(part * pixel.astype(jnp.float32) for part, pixel in zip(parts, corners(raw), strict=True))
    axes = (0, 1, 2)
    total = jnp.sum(passed, axes)
    sums = total, inverse * (jnp.sum(chosen, axes) - mean * total)
    slope, constant = slope_and_constant(mean, inverse, factor, sums, raw.size // raw.shape[-1])
    sparse = _interleave(parts, raw.shape)
    wide = raw.astype(jnp.float32)
    gradient = spread(factor) * sparse + spread(slope) * wide + spread(constant)
    return gradient.astype(raw.dtype), sums[1], sums[0]


def _interleave(parts, shape):
    images, rows, columns, channels = parts[0].shape
    lines = [jnp.stack(parts[start : start + 2], axis=3) for start in (0, 2)]
    tiles = jnp.stack(lines, axis=2).reshape(images, 2 * rows, 2 * columns, channels)
    return jnp.pad(tiles, ((0, 0), (0, shape[1] - 2 * rows), (0, shape[2] - 2 * columns), (0, 0)))


norm_pool_hand.defvjp(_hand_forward, _hand_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def norm_pool_kernel(tilings, raw, scale, offset):
    return _norm_pool_forward(tilings, raw, scale, offset)[0]


def _norm_pool_forward(tilings, raw, scale, offset):
    wide = raw.astype(jnp.float32)
    sums = jnp.sum(wide, axis=(0, 1, 2)), jnp.sum(jnp.square(wide), axis=(0, 1, 2))
    grid = grid_of(raw)
    state = moments(*sums, grid.pixels, scale, offset)
    pooled = kernels.normalise_pool(flat(raw), *state[2:], grid, tilings.pool)
    return unflat(pooled, grid.pooled), (raw, state)


def _norm_pool_backward(tilings, saved, cotangent):
    raw, state = saved
    gradient, *rest = raw_gradient(tilings, flat(raw), state, flat(cotangent), grid_of(raw))
    return gradient.reshape(raw.shape), *rest


def raw_gradient(tilings, raw, state, cotangent, grid: Grid):
    """Gradients with respect to the convolution's output, the scale and the offset."""
    mean, inverse, factor, shift = state
    sums = kernels.pool_gradient_sums(raw, cotangent, factor, shift, mean, inverse, grid, tilings.pool)
    slope, constant = slope_and_constant(mean, inverse, factor, sums, grid.pixels)
    gradient = kernels.pool_gradient(raw, cotangent, factor, shift, slope, constant, grid, tilings.pool)
    return gradient, sums[1], sums[0]


norm_pool_kernel.defvjp(_norm_pool_forward, _norm_pool_backward)


# Whole blocks by kernels.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def fused_block(tilings, inputs, kernel, scale, offset):
    return _fused_forward(tilings, inputs, kernel, scale, offset)[0]


def _fused_forward(tilings, inputs, kernel, scale, offset):
    grid, narrow = grid_of(inputs), kernel.astype(inputs.dtype)
    raw, sums = kernels.convolve(flat(inputs), narrow, grid, tilings.convolve)
    state = moments(*jnp.sum(sums, axis=0), grid.pixels, scale, offset)
    pooled = kernels.normalise_pool(raw, *state[2:], grid, tilings.pool)
    return unflat(pooled, grid.pooled), (inputs, narrow, raw, state)


def _fused_backward(tilings, saved, cotangent):
    inputs, kernel, raw, state = saved
    grid = grid_of(inputs)
    rows, *rest = raw_gradient(tilings, raw, state, flat(cotangent), grid)
    gradient, _ = kernels.convolve(rows, kernel, grid, tilings.transposed, transposed=True)
    kernel_gradient = kernels.kernel_gradient(flat(inputs), rows, grid, tilings.kernel_gradient)
    return gradient.reshape(inputs.shape), kernel_gradient, *rest


fused_block.defvjp(_fused_forward, _fused_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_block(tilings, images, kernel, scale, offset):
    """Not differentiable with respect to the images: their gradient is given as zero."""
    return _first_forward(tilings, images, kernel, scale, offset)[0]


def _first_forward(tilings, images, kernel, scale, offset):
    grid = grid_of(images)
    rows = kernel.shape[2] * kernels.TAPS
    matrix = kernel.reshape(rows, -1).astype(images.dtype)
    wide = matrix.astype(jnp.float32)
    gram = kernels.patch_gram(flat(images), grid, tilings.gram)
    sums, products = gram[rows, :rows], _small_matmul(gram[:rows, :rows], wide)
    state = moments(_small_matmul(sums[None], wide)[0], jnp.sum(wide * products, axis=0), grid.pixels, scale, offset)
    padded = jnp.pad(matrix, ((0, kernels.patch_columns(kernel.shape[2]) - rows), (0, 0)))
    pooled = kernels.first_block(flat(images), padded, *state[2:], grid, tilings.first)
    return unflat(pooled, grid.pooled), (images, padded, sums, products, state)


def _first_backward(tilings, saved, cotangent):
    images, padded, sums, products, (mean, inverse, factor, shift) = saved
    grid, rows = grid_of(images), len(sums)
    gradient = kernels.first_block_gradient(
        flat(images), padded, flat(cotangent), factor, shift, grid, tilings.first_gradient
    )
    total, gradient = gradient[rows], gradient[:rows]
    # The gradient times the output, summed: the output is a product of patches and kernel, so the kernel comes out.
    along = inverse * (jnp.sum(padded[:rows].astype(jnp.float32) * gradient, axis=0) - mean * total)
    normalised = inverse[None] * (products - sums[:, None] * mean[None])
    both = (sums[:, None] * total[None] + normalised * along[None]) / grid.pixels
    kernel_gradient = factor[None] * (gradient - both)
    return jnp.zeros_like(images), kernel_gradient.reshape(3, 3, images.shape[-1], -1), along, total


first_block.defvjp(_first_forward, _first_backward)


def _small_matmul(left, right):
    """Not a library product, which would cost a launch and round to fewer digits."""
    return jnp.sum(left[:, :, None] * right[None], axis=1)


def grid_of(images):
    return Grid(*images.shape[:3])


def flat(images):
    return images.reshape(-1, images.shape[-1])


def unflat(rows, grid: Grid):
    return rows.reshape(grid.images, grid.height, grid.width, -1)


def spread(channels):
    return channels[None, None, None]
