"""Parameters of 16 bits, and updates too small for them: what rounding cuts off is kept, and counts in the next one."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ._prior import Prior
from ._types import Params


def nothing_cut(prior: Prior) -> Params:
    """Zeros for the leaves of the mean that have few bits; `None` for the others, of which nothing is cut off."""
    zeros = jax.eval_shape(prior.zeros)
    return jax.tree.map(
        lambda leaf, zero: None if zero.dtype == leaf.dtype else jnp.zeros(zero.shape, zero.dtype), prior.mean, zeros
    )


def whole(params: Params, cut: Params) -> Params:
    """The parameters with what was cut off, in as many bits as that has."""
    return jax.tree.map(lambda leaf, rest: leaf if rest is None else leaf.astype(rest.dtype) + rest, params, cut)


def apply(optimiser: optax.GradientTransformation, gradient: Any, state: Any, value: Any) -> tuple[Any, Any]:
    """The optimiser's next value, and its state."""
    try:
        updates, state = optimiser.update(gradient, state, value)
    except TypeError as error:
        if "keyword-only argument" in str(error):
            raise TypeError(
                f"Optimisers are given a gradient, their state and the parameters, and this one needs more ({error}): "
                "use another, such as `optax.adam`."
            ) from error
        raise
    return optax.apply_updates(value, updates), state


def apply_rounded(
    optimiser: optax.GradientTransformation, gradient: Params, state: Any, params: Params, cut: Params
) -> tuple[Params, Any, Params]:
    """The optimiser's next parameters, its state, and what was cut off of the parameters this time."""
    exact = whole(params, cut)
    gradient = jax.tree.map(lambda slope, leaf: slope.astype(leaf.dtype), gradient, exact)
    exact, state = apply(optimiser, gradient, state, exact)
    rounded = jax.tree.map(lambda leaf, old: _round(leaf, old.dtype), exact, params)
    new = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), rounded, params)
    # Nothing is cut off of an infinity, such as a mask has.
    cut = jax.tree.map(
        lambda leaf, short, rest: None if rest is None else jnp.where(jnp.isfinite(short), leaf - short, 0),
        exact,
        rounded,
        cut,
    )
    return new, state, cut


def _round(leaf: jax.Array, dtype: Any) -> jax.Array:
    """To the precision of `dtype`. Not by `astype` and back, which XLA takes for nothing at all on a GPU."""
    if leaf.dtype == dtype:
        return leaf
    kind = jnp.finfo(dtype)
    return jax.lax.reduce_precision(leaf, exponent_bits=kind.nexp, mantissa_bits=kind.nmant)
