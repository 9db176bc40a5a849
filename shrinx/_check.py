"""Checks of what a caller hands in: one sentence that names the culprit, before anything is compiled."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._modules import _named_leaves
from ._prior import Prior
from ._types import AnyTree

SHOWN = 20
"""Arrays that a message names at most."""


def is_concrete(array: Any) -> bool:
    """Whether values can be looked at: not so inside `jit`, `vmap` or `grad`."""
    return not isinstance(array, Tracer)


def as_integer(value: Any) -> Any:
    """A numpy integer as Python's own; anything else as it is, to be refused by name."""
    return int(value) if isinstance(value, np.integer) else value


def as_tuple(value: Any) -> Any:
    """A list as a tuple, which `jit` can compare; anything else as it is, to be refused by name."""
    return tuple(value) if isinstance(value, list) else value


def as_number(value: Any) -> Any:
    """A lone number of numpy's or JAX's as Python's own, which has no precision to force on others; anything else as it
    is."""
    lone = isinstance(value, np.generic) or (isinstance(value, jax.Array) and is_concrete(value) and value.ndim == 0)
    return value.item() if lone else value


def check_number(name: str, value: Any, *, positive: bool = False) -> None:
    """In a search such numbers are traced, and were looked at before."""
    if not is_concrete(value):
        return
    a_number = isinstance(value, int | float | np.ndarray | np.generic | jax.Array) and jnp.ndim(value) == 0
    if not a_number or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a number, got {value!r}.")
    number = float(value)
    if not (number > 0 or (number == 0 and not positive)):
        raise ValueError(f"`{name}` must be {'positive' if positive else '0 or greater'}, got {value}.")


def check_key(key: Any, *, needed: bool = False) -> None:
    """A key of `jax.random`, typed or not; or none, where none is needed."""
    if (key is None and not needed) or not is_concrete(key):
        return
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if typed or getattr(key, "dtype", None) == jnp.uint32:
        return
    raise TypeError(f"`key` must be made by `jax.random.key(seed)`, got {key!r}.")


def check_sample(name: str, sample: Any) -> None:
    if sample is not None and (not callable(sample) or isinstance(sample, type)):
        raise TypeError(f"`{name}` must be a function of key and data, such as `RowSample(16)`, got {sample!r}.")


def check_at_least(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"`{name}` must be an integer, got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def check_prior(prior: Any) -> None:
    if not isinstance(prior, Prior):
        raise TypeError(f"Expected a `Prior`, got {type(prior).__name__}; make one with `Prior.create(params)`.")
    prior.modules.check(prior.mean, "prior.mean")
    if prior.log_variance.shape != (len(prior.modules),):
        raise ValueError(
            f"`prior.log_variance` has shape {prior.log_variance.shape}; there are {len(prior.modules)} modules."
        )
    if prior.rates is not None and not prior.has_module_rates:
        prior.modules.check(prior.rates, "prior.rates")


def check_data(data: AnyTree, what: str) -> None:
    named = _named_leaves(data, "array")
    if not named:
        raise ValueError(f"`{what}` holds no arrays.")
    foreign = [f"'{path}' is {_kind(leaf)}" for path, leaf in named if not _is_numeric(leaf)]
    if foreign:
        raise TypeError(
            f"`{what}` must hold numbers and arrays of numbers only, but {', '.join(foreign)}. Tables become arrays by "
            "`.to_numpy(dtype=float)`."
        )
    empty = [f"'{path}' of shape {jnp.shape(leaf)}" for path, leaf in named if 0 in jnp.shape(leaf)]
    if empty:
        raise ValueError(f"`{what}` is empty: {', '.join(empty)}.")


def _is_numeric(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"  # Objects, text and dates; the rest JAX knows.
    return eqx.is_array_like(leaf)


def _kind(leaf: Any) -> str:
    return f"of dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
