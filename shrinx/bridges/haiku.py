"""Haiku models as parameters and a function."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .._modules import _checked_leaves
from .._types import Params


def from_haiku(
    transformed: Any, params: Mapping[str, Any], state: Mapping[str, Any] | None = None
) -> tuple[Params, Callable[..., Any]]:
    """A Haiku model as parameters and a function.

    - **Parameters** are those that `init` returned, as they are.
    - **Batch norm** needs `hk.transform_with_state` and its `state`, which is constant: what the model writes into it
      is dropped. `is_training=True` uses the statistics of the batch.
    - **Dropout** needs a key: `apply(params, *inputs, rng=key)`. Without one, a model that wants it says so.

    **Arguments:**

    - `transformed`: what `hk.transform` or `hk.transform_with_state` gave, with or without `hk.without_apply_rng`.
    - `params`, and `state` of a model that has one: what `transformed.init` returned.

    **Returns:** `(params, apply)`; `apply(params, *inputs)` takes what the transformed function takes.

    >>> import haiku as hk, jax, jax.numpy as jnp, shrinx as sx
    >>> model = hk.transform(lambda x: hk.nets.MLP([4, 2])(x))
    >>> params, apply = sx.from_haiku(model, model.init(jax.random.key(0), jnp.ones((1, 3))))
    >>> sx.by_layer(params).names, apply(params, jnp.ones((5, 3))).shape
    (('mlp/~/linear_0', 'mlp/~/linear_1'), (5, 2))
    """
    try:
        import haiku as hk
    except ModuleNotFoundError as error:
        raise ImportError("The bridge to Haiku needs Haiku: pip install 'shrinx[haiku]'.") from error
    if not isinstance(transformed, hk.Transformed | hk.TransformedWithState):
        raise TypeError(f"`from_haiku` takes what `hk.transform(function)` returns, got {type(transformed).__name__}.")
    with_state = isinstance(transformed, hk.TransformedWithState)
    if with_state != (state is not None):
        raise ValueError(
            "The model was made by `hk.transform_with_state`; pass both, `params, state = transformed.init(...)`."
            if with_state
            else "The model was made by `hk.transform` and has no state; pass its parameters alone."
        )
    _checked_leaves(params)
    takes_key = "rng" in inspect.signature(transformed.apply).parameters

    def apply(params: Params, *inputs: Any, rng: Any = None, **options: Any) -> Any:
        constants = ((state,) if with_state else ()) + ((rng,) if takes_key else ())
        outputs = transformed.apply(params, *constants, *inputs, **options)
        return outputs[0] if with_state else outputs

    return params, apply
