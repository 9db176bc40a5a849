"""An implicit gradient by the diagonal of the Hessian, which Adam knows but for a factor."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from ._check import as_number, check_number
from ._linear import LinearStats, ProductFn
from ._modules import accumulation_dtype
from ._prior import Prior
from ._tree import tree_dot
from ._types import Params


class Diagonal(eqx.Module):
    r"""The system of an implicit gradient with the diagonal h of the Hessian in its place:

    $$ d\phi_i = \frac{g_i}{1 + \sigma_m^2 (h_i + d)}. $$

    Conjugate gradients begin where the loss is steepest, and in long adaptation with large variances it takes hundreds
    of steps until they come to directions that data and prior decide together, which are those that tell how large a
    variance should be. `FirstOrder` leaves the Hessian out and lets steep directions decide. Between the two, this
    costs one product with the Hessian.

    Near the end of adaptation the squared gradients of mini-batches are proportional to h, if the loss is a negative
    log-likelihood: both are Fisher's information. [`ProximalAdam`][shrinx.ProximalAdam] keeps their average, in every
    parameter; the factor is the one with which the sum of h is that of the Hessian, as random signs measure it.

    **Arguments:** `damping`, d ≥ 0.

    >>> import shrinx as sx
    >>> adjoint = sx.Implicit(sx.Diagonal(), batches=4)  # With ProximalAdam, and mini-batches by `sample`.
    """

    damping: float | Array = eqx.field(default=0.0, converter=as_number)

    def __check_init__(self):
        check_number("damping", self.damping)

    def solve(
        self, hessian: ProductFn, gradient: Params, prior: Prior, *, squares: Params, key: PRNGKeyArray
    ) -> tuple[Params, LinearStats]:
        """dφ for the gradient g = `gradient`, with h proportional to `squares`."""
        dtype = accumulation_dtype(gradient)
        signs = _signs(key, gradient)
        trace = tree_dot(signs, hessian(signs))
        total = jnp.sum(jnp.stack([jnp.sum(leaf.astype(dtype)) for leaf in jax.tree.leaves(squares)]))
        # Without any curvature upwards there is no factor, and the gradient is that of first order.
        factor = jnp.where((trace > 0) & (total > 0), trace / jnp.where(total > 0, total, 1), 0)
        variance = prior.modules.expand(prior.variance.astype(dtype))

        def divide(slope: Array, variance: Array, square: Array) -> Array:
            curvature = factor * square.astype(dtype) + self.damping
            return (slope.astype(dtype) / (1 + variance * curvature)).astype(slope.dtype)

        solution = jax.tree.map(divide, gradient, variance, squares)
        unknown = jnp.full((), jnp.nan, dtype)
        return solution, LinearStats(jnp.ones((), jnp.int32), unknown, ~(trace > 0))


def _signs(key: PRNGKeyArray, like: Params) -> Params:
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten(
        [jax.random.rademacher(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    )
