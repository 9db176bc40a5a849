"""Small linear algebra on pytrees of arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ._modules import accumulation_dtype
from ._types import AnyTree, Params, Scalar


def tree_dot(a: Params, b: Params) -> Scalar:
    dtype = accumulation_dtype(a)
    products = jax.tree.map(lambda x, y: jnp.sum(x.astype(dtype) * y.astype(dtype)), a, b)
    return jnp.asarray(sum(jax.tree.leaves(products)))


def tree_norm(tree: Params) -> Scalar:
    return jnp.sqrt(tree_dot(tree, tree))


def tree_axpy(scale: Scalar, x: Params, y: Params) -> Params:
    """scale x + y."""
    return jax.tree.map(lambda a, b: scale.astype(a.dtype) * a + b, x, y)


def tree_where(condition: Bool[Array, ""], a: AnyTree, b: AnyTree) -> AnyTree:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def all_finite(tree: AnyTree) -> Bool[Array, ""]:
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(finite))


def stop_gradient(tree: AnyTree) -> AnyTree:
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
