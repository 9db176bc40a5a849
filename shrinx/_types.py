"""The words every signature uses."""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import Array, Float, PyTree

Params: TypeAlias = PyTree[Float[Array, "..."]]
"""A pytree of floating arrays: a network's parameters, or anything shaped like them."""

AnyTree: TypeAlias = PyTree[Any]
"""A tree nobody has checked yet."""

Data: TypeAlias = PyTree[Any]
"""A pytree of arrays: whatever `loss_fn` and `sample` understand."""

Scalar: TypeAlias = Float[Array, ""]

LossFn: TypeAlias = Callable[[Params, Data], Scalar]
"""Negative log-likelihood of a batch under given parameters."""

SampleFn: TypeAlias = Callable[[Any, Data], Data]
"""Draws a mini-batch: `sample(key, data)`."""
