"""The kernels, differentiable: values by a kernel, derivatives those of the same function in plain JAX.

A gradient of the network needs no derivative of a kernel, since `rules.py` writes it with kernels again. Second
derivatives do, by jvp of the gradient or by its gradient, and get them exactly at the speed of XLA.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from . import block, first, plain
from .pixels import Grid, Tiling


def differentiable(kernel: Callable[..., Any], same: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel(*arrays, grid=, tiling=)` with the derivative of `same(*arrays, grid=)`."""

    def function(*arrays: jax.Array, grid: Grid, tiling: Tiling) -> Any:
        @jax.custom_jvp
        def value(*arrays: jax.Array) -> Any:
            return kernel(*arrays, grid=grid, tiling=tiling)

        @functools.partial(value.defjvp, symbolic_zeros=True)
        def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            # Only along what moves: the images of a task do not, and their patches are half the work.
            moving = [place for place, tangent in enumerate(tangents) if not isinstance(tangent, SymbolicZero)]

            def along(*moved: jax.Array) -> Any:
                arguments = dict(enumerate(primals)) | dict(zip(moving, moved, strict=True))
                return same(*arguments.values(), grid=grid)

            starts, directions = (tuple(many[place] for place in moving) for many in (primals, tangents))
            return value(*primals), jax.jvp(along, starts, directions)[1]

        return value(*arrays)

    return function


convolve = differentiable(block.convolve, plain.convolve)
convolve_transposed = differentiable(block.convolve_transposed, plain.convolve_transposed)
kernel_gradient = differentiable(block.kernel_gradient, plain.kernel_gradient)
normalise_pool = differentiable(block.normalise_pool, plain.normalise_pool)
pool_gradient_sums = differentiable(block.pool_gradient_sums, plain.pool_gradient_sums)
pool_gradient = differentiable(block.pool_gradient, plain.pool_gradient)
patch_gram = differentiable(first.patch_gram, plain.patch_gram)
first_block = differentiable(first.first_block, plain.first_block)
first_block_gradient = differentiable(first.first_block_gradient, plain.first_block_gradient)
