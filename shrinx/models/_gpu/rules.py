"""Blocks of the network, their gradients written by hand: convolution, batch norm, pooling and ReLU."""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from ..conv import xla_block
from . import differentiable as kernels
from .block import Channels, Kernel, Rows
from .first import patch_columns
from .pixels import TAPS, Tiling
from .plain import Images, flat, grid_of, moments, unflat


class Tilings(NamedTuple):
    """For the kernels of a block: those that were fastest on an H200 (`benchmarks/conv_gpu.py`)."""

    convolve: Tiling = Tiling(128, stages=3)
    transposed: Tiling = Tiling(128, stages=3)
    kernel_gradient: Tiling = Tiling(64, stages=3, taps=3, splits=4)
    pool: Tiling = Tiling(32)
    first: Tiling = Tiling(32)
    first_gradient: Tiling = Tiling(64, splits=32)
    gram: Tiling = Tiling(128, splits=32)


MANY_PIXELS = Tilings()
FEW_PIXELS = Tilings(
    convolve=Tiling(64, stages=4),
    transposed=Tiling(64, stages=3),
    kernel_gradient=Tiling(32, stages=3, taps=1, splits=1),
    pool=Tiling(64, warps=8),
)


def tilings_for(images: Images, *, interpret: bool = False) -> Tilings:
    """Twenty images of 14 x 14 pixels are many, of 7 x 7 few."""
    tilings = MANY_PIXELS if grid_of(images).pixels > 2000 else FEW_PIXELS
    return Tilings(*(replace(tiling, interpret=interpret) for tiling in tilings))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def block(tilings: Tilings, inputs: Images, kernel: Kernel, scale: Channels, offset: Channels) -> Images:
    """Of as many channels as filters, or of 16, 32 or 64."""
    return _forward(tilings, inputs, kernel, scale, offset)[0]


def _forward(
    tilings: Tilings, inputs: Images, kernel: Kernel, scale: Channels, offset: Channels
) -> tuple[Images, tuple[Any, ...]]:
    grid, narrow = grid_of(inputs), kernel.astype(inputs.dtype)
    raw, sums = kernels.convolve(flat(inputs), narrow, grid=grid, tiling=tilings.convolve)
    normal = moments(sums, grid.pixels, scale, offset)
    pooled = kernels.normalise_pool(raw, normal.factor, normal.shift, grid=grid, tiling=tilings.pool)
    return unflat(pooled, grid.pooled), (inputs, narrow, raw, normal)


def _backward(tilings: Tilings, saved: tuple[Any, ...], cotangent: Images) -> tuple[Images, Kernel, Channels, Channels]:
    inputs, kernel, raw, (mean, inverse, factor, shift) = saved
    grid, arriving = grid_of(inputs), flat(cotangent)
    pooling = {"grid": grid, "tiling": tilings.pool}
    total, along = kernels.pool_gradient_sums(raw, arriving, factor, shift, mean, inverse, **pooling)
    # What a pixel's gradient takes from the mean and variance that depend on it is slope * pixel + constant.
    slope = -factor * inverse * along / grid.pixels
    constant = -factor * total / grid.pixels - slope * mean
    rows = kernels.pool_gradient(raw, arriving, factor, shift, slope, constant, **pooling)
    gradient = kernels.convolve_transposed(rows, kernel, grid=grid, tiling=tilings.transposed)
    kernel_gradient = kernels.kernel_gradient(flat(inputs), rows, grid=grid, tiling=tilings.kernel_gradient)
    return gradient.reshape(inputs.shape), kernel_gradient, along, total


block.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def first_block(tilings: Tilings, images: Images, kernel: Kernel, scale: Channels, offset: Channels) -> Images:
    """Of few channels. If the images are differentiated too, the kernels are not used."""
    return _first_values(tilings, images, kernel, scale, offset)[0]


def _first_values(
    tilings: Tilings, images: Images, kernel: Kernel, scale: Channels, offset: Channels
) -> tuple[Images, tuple[Any, ...]]:
    grid, rows = grid_of(images), kernel.shape[2] * TAPS
    narrow = kernel.reshape(rows, -1).astype(images.dtype)
    wide = narrow.astype(jnp.float32)
    gram = kernels.patch_gram(flat(images), grid=grid, tiling=tilings.gram)
    patch_sums, products = gram[rows, :rows], _small_product(gram[:rows, :rows], wide)
    sums = jnp.stack([_small_product(patch_sums[None], wide)[0], jnp.sum(wide * products, axis=0)])
    normal = moments(sums, grid.pixels, scale, offset)
    weights = jnp.pad(narrow, ((0, patch_columns(kernel.shape[2]) - rows), (0, 0)))
    pooled = kernels.first_block(flat(images), weights, normal.factor, normal.shift, grid=grid, tiling=tilings.first)
    return unflat(pooled, grid.pooled), (images, weights, patch_sums, products, normal)


def _first_forward(tilings: Tilings, *primals: Any) -> tuple[Images, tuple[Any, Any]]:
    arguments = tuple(primal.value for primal in primals)
    if primals[0].perturbed:
        return xla_block("pool", *arguments), (arguments, None)
    pooled, saved = _first_values(tilings, *arguments)
    return pooled, (None, saved)


def _first_backward(tilings: Tilings, saved: tuple[Any, Any], cotangent: Any) -> tuple[Any, ...]:
    if isinstance(cotangent, SymbolicZero):
        nothing: Any = cotangent.aval
        cotangent = jnp.zeros(nothing.shape, nothing.dtype)
    arguments, values = saved
    if values is None:
        return jax.vjp(functools.partial(xla_block, "pool"), *arguments)[1](cotangent)
    images, weights, patch_sums, products, (mean, inverse, factor, shift) = values
    grid, rows = grid_of(images), len(patch_sums)
    gradient = kernels.first_block_gradient(
        flat(images), weights, flat(cotangent), factor, shift, grid=grid, tiling=tilings.first_gradient
    )
    total, gradient = gradient[rows], gradient[:rows]
    # The gradient times the output, summed: the output is a product of patches and weights, so the weights come out.
    along = inverse * (jnp.sum(weights[:rows].astype(jnp.float32) * gradient, axis=0) - mean * total)
    normalised = inverse[None] * (products - patch_sums[:, None] * mean[None])
    both = (patch_sums[:, None] * total[None] + normalised * along[None]) / grid.pixels
    kernel_gradient = (factor[None] * (gradient - both)).reshape(3, 3, images.shape[-1], -1)
    return None, kernel_gradient, along, total


first_block.defvjp(_first_forward, _first_backward, symbolic_zeros=True)


def _small_product(left: Rows, right: Rows) -> Rows:
    """Not a library product, which would cost a launch and round to fewer digits."""
    return jnp.sum(left[:, :, None] * right[None], axis=1)
