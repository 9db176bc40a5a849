"""Small models and the banks of their tasks, shared by the tests."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import shrinx as sx
from shrinx.models import mlp

SELECTED = ("b0", "w0")


def sinusoid_prior(width: int = 40) -> sx.Prior:
    params = mlp.init(jax.random.key(0), (1, width, width, 1), first_scale=0.3)
    variances = {"w0": 40.0, "b0": 130.0, "w1": 2e-4, "b1": 1e-3, "w2": 0.09, "b2": 0.02}
    return sx.Prior.create(params, modules=sx.by_leaf(params), variance=variances)


def moved(prior: sx.Prior, names: str | tuple[str, ...], amount: float, seed: int = 0) -> dict:
    """The prior's mean with the modules `names` moved at random."""
    restriction = prior.modules.restrict(names)
    generator = np.random.default_rng(seed)
    part = [
        leaf + jnp.asarray(amount * generator.normal(size=leaf.shape), leaf.dtype)
        for leaf in restriction.extract(prior.mean)
    ]
    return restriction.merge(tuple(part), prior.mean)


def assert_same(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())
