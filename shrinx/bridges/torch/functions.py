"""Arithmetic, activations and reductions whose PyTorch form differs from the one of JAX.

Arguments come in the order of PyTorch's schema. Where a function has a kink, its derivative is PyTorch's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def add(x: Any, y: Any, alpha: Any = 1) -> Array:
    return jnp.add(x, y if alpha == 1 else alpha * y)


def subtract(x: Any, y: Any, alpha: Any = 1) -> Array:
    return jnp.subtract(x, y if alpha == 1 else alpha * y)


def divide(x: Any, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    quotient = jnp.true_divide(x, y)
    return quotient if rounding_mode is None else jnp.trunc(quotient)


def absolute(x: Array) -> Array:
    # The derivative at 0 is 0, where `jnp.abs` has 1.
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.abs(x))


def power(x: Any, exponent: Any) -> Array:
    # A whole exponent as an integer: its derivative at 0 is finite.
    whole = isinstance(exponent, float) and exponent.is_integer()
    return jnp.power(x, int(exponent) if whole else exponent)


def product(a: Array, b: Array) -> Array:
    """The matrix product. PyTorch refuses two dtypes only when it runs a graph, and never runs the one it exports."""
    check_one_dtype(a, b)
    return a @ b


def product_plus(bias: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    return beta * bias + alpha * product(a, b)


def check_one_dtype(a: Array, b: Array) -> None:
    if a.dtype != b.dtype:
        raise TypeError(
            f"The module multiplies arrays of dtypes {a.dtype} and {b.dtype}, which PyTorch does not allow; convert "
            "its inputs to the dtype of its parameters."
        )


def clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    # At the bounds the derivative is 1, where `jnp.clip` has ½.
    x = x if low is None else jnp.where(x < low, low, x)
    return x if high is None else jnp.where(x > high, high, x)


def hard_tanh(x: Array, low: Any = -1, high: Any = 1) -> Array:
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def hard_sigmoid(x: Array) -> Array:
    return hard_tanh(x + 3, 0, 6) / 6


def hard_swish(x: Array) -> Array:
    return jnp.where(x <= -3, 0, jnp.where(x >= 3, x, x * (x + 3) / 6))


def leaky_relu(x: Array, slope: Any = 0.01) -> Array:
    return jnp.where(x > 0, x, slope * x)


def elu(x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    # The inner condition keeps the branch not taken from overflowing, which would make the derivative NaN.
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0, x) * input_scale))


def celu(x: Array, alpha: Any = 1) -> Array:
    return elu(x, alpha, 1, 1 / alpha)


def gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def softplus(x: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    return jnp.where(x * beta > threshold, x, jnp.logaddexp(x * beta, 0) / beta)


def softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.softmax(x, axis=dim)


def log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.log_softmax(x, axis=dim)


def axes(dim: Any) -> int | tuple[int, ...] | None:
    """PyTorch says "all" by None and by an empty list."""
    return (tuple(dim) or None) if isinstance(dim, Sequence) else dim


def reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduce(x: Array, dim: Any = None, keepdim: bool = False, **options: Any) -> Array:
        return function(x, axis=axes(dim), keepdims=keepdim, **options)

    return reduce


def cumulative(function: Callable[..., Array]) -> Callable[..., Array]:
    def accumulate(x: Array, dim: int, **options: Any) -> Array:
        return function(x, axis=dim, **options)

    return accumulate


def variance(x: Array, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Array:
    return jnp.var(x, axis=axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def deviation(x: Array, dim: Any = None, **options: Any) -> Array:
    return root(variance(x, dim, **options))


def variance_and_mean(x: Array, dim: Any = None, keepdim: bool = False, **options: Any) -> tuple[Array, Array]:
    return variance(x, dim, keepdim=keepdim, **options), jnp.mean(x, axis=axes(dim), keepdims=keepdim)


def vector_norm(x: Array, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    size, options = absolute(x), {"axis": axes(dim), "keepdims": keepdim}
    if order == 2:
        return root(jnp.sum(jnp.square(x), **options))
    if math.isinf(order):
        return jnp.max(size, **options) if order > 0 else jnp.min(size, **options)
    if order == 0:
        return jnp.sum((x != 0).astype(x.dtype), **options)
    return jnp.sum(size**order, **options) ** (1 / order)


def root(x: Array) -> Array:
    """The square root with the derivative 0 at 0, as the norm and the deviation of nothing have in PyTorch."""
    return jnp.where(x == 0, 0, jnp.sqrt(jnp.where(x == 0, 1, x)))


def extreme(argument: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """Value and position along one axis; the derivative belongs to that position alone."""

    def find(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        index = argument(x, axis=dim, keepdims=True)
        value = jnp.take_along_axis(x, index, axis=dim)
        return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))

    return find


def position(argument: Callable[..., Array]) -> Callable[..., Array]:
    def find(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return argument(x, axis=dim, keepdims=keepdim)

    return find


def sort(x: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, stable=True, descending=descending)
    return jnp.take_along_axis(x, index, axis=dim), index


def largest(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    values, index = sort(x, dim, descending=largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(index, 0, k, axis=dim)
