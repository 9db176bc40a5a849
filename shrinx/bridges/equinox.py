"""Equinox models as parameters and a function."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from .._modules import _checked_leaves
from .._types import AnyTree, Params


def from_equinox(
    model: AnyTree, state: eqx.nn.State | None = None, *, axis_name: str = "batch"
) -> tuple[Params, Callable[..., Any]]:
    """An Equinox model, which acts on one example, as parameters and a function of a batch.

    - **Parameters** are the floating arrays of the model; everything else in it is constant. `eqx.combine(params,
      model)` is the model with other parameters.
    - **Batch norm** needs the `state` that `eqx.nn.make_with_state` gives. It is constant too: what the model writes
      into it is dropped. With `mode="batch"` it uses the statistics of the batch, in inference mode the running ones.
    - **Dropout** must be off: `eqx.nn.inference_mode(model)`.

    **Arguments:**

    - `model`: any callable pytree.
    - `state`: if the model is called as `model(*inputs, state)` and returns its state second.
    - `axis_name`: the name of the batch axis, as the model's batch norm knows it.

    **Returns:** `(params, apply)`; `apply(params, *inputs)` maps the model over the first axis of all inputs.

    >>> import equinox as eqx, jax, jax.numpy as jnp, shrinx as sx
    >>> params, apply = sx.from_equinox(eqx.nn.MLP(3, 2, width_size=4, depth=1, key=jax.random.key(0)))
    >>> sx.by_layer(params).names, apply(params, jnp.ones((5, 3))).shape
    (('layers/0', 'layers/1'), (5, 2))
    """
    if not callable(model):
        raise TypeError(f"`from_equinox` takes a model that can be called, got {type(model).__name__}.")
    if any(isinstance(part, eqx.nn.Dropout) and not part.inference and part.p > 0 for part in _parts(model)):
        raise ValueError("Dropout is switched on, and there is no key; pass `eqx.nn.inference_mode(model)`.")
    params, constants = eqx.partition(model, eqx.is_inexact_array)
    _checked_leaves(params)

    def apply(params: Params, *inputs: Any) -> Any:
        whole = eqx.combine(params, constants)
        if state is None:
            return jax.vmap(whole, axis_name=axis_name)(*inputs)
        axes = (0,) * len(inputs)
        outputs, _ = jax.vmap(whole, in_axes=(*axes, None), out_axes=(0, None), axis_name=axis_name)(*inputs, state)
        return outputs

    return params, apply


def _parts(model: AnyTree) -> list[Any]:
    return jax.tree.leaves(model, is_leaf=lambda part: isinstance(part, eqx.nn.Dropout))
