"""Flax models, linen and nnx, as parameters and a function."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from .._modules import _checked_leaves
from .._types import Params


def from_flax(module: Any, variables: Mapping[str, Any] | None = None) -> tuple[Params, Callable[..., Any]]:
    """A Flax model as parameters and a function: `from_flax(module, variables)` for linen, `from_flax(model)` for nnx.

    - **Parameters** are the collection `params` of linen, the `nnx.Param`s of nnx. All other variables are constant;
      what the model writes into them is dropped.
    - **Batch norm** uses the statistics of the batch or the running ones, as its `use_running_average` says. The
      running ones are constant.
    - **Dropout** must be off: `deterministic=True`, with nnx `model.eval()`. (Linen takes a key at every call, too:
      `apply(params, *inputs, rngs={"dropout": key})`.)

    **Arguments:** `module`, a linen module or an nnx model, and `variables`, what the linen module's `init` returned.

    **Returns:** `(params, apply)`; `apply(params, *inputs)` takes what the model takes, keywords included. Linen's
    parameters are dictionaries, nnx's an `nnx.State` for `nnx.update(model, params)`.

    >>> import flax.linen, jax, jax.numpy as jnp, shrinx as sx
    >>> module = flax.linen.Sequential([flax.linen.Dense(4), flax.linen.relu, flax.linen.Dense(2)])
    >>> params, apply = sx.from_flax(module, module.init(jax.random.key(0), jnp.ones((1, 3))))
    >>> sx.by_layer(params).names, apply(params, jnp.ones((5, 3))).shape
    (('layers_0', 'layers_2'), (5, 2))
    """
    try:
        from flax import linen, nnx
    except ModuleNotFoundError as error:
        raise ImportError("The bridge to Flax needs Flax: pip install 'shrinx[flax]'.") from error
    if isinstance(module, linen.Module):
        return _from_linen(module, variables)
    if not isinstance(module, nnx.Module):
        raise TypeError(f"`from_flax` takes a linen module with its variables or an nnx model, got {_name(module)}.")
    if variables is not None:
        raise ValueError(f"{_name(module)} is an nnx model and holds its variables itself; call `from_flax(model)`.")
    return _from_nnx(module)


def _name(value: Any) -> str:
    return value.__name__ + ", a class" if isinstance(value, type) else type(value).__name__


def _from_linen(module: Any, variables: Any) -> tuple[Params, Callable[..., Any]]:
    from flax.errors import InvalidRngError

    if not isinstance(variables, Mapping) or "params" not in variables:
        raise ValueError(
            f"{_name(module)} is a linen module and needs its variables, with 'params' among them; call "
            "`from_flax(module, module.init(key, inputs))`."
        )
    constants = {name: values for name, values in variables.items() if name != "params"}
    _checked_leaves(variables["params"])

    def apply(params: Params, *inputs: Any, **options: Any) -> Any:
        try:
            outputs, _ = module.apply({"params": params, **constants}, *inputs, mutable=[*constants], **options)
        except InvalidRngError as error:
            raise ValueError(_random(module, "`deterministic=True`")) from error
        return outputs

    return variables["params"], apply


def _from_nnx(model: Any) -> tuple[Params, Callable[..., Any]]:
    from flax import nnx

    graph, params, counts, constants = nnx.split(model, nnx.Param, nnx.RngCount, ...)
    _checked_leaves(params)

    def apply(params: Params, *inputs: Any, **options: Any) -> Any:
        # Copied, so that what the model writes into its variables stays within this call.
        whole = nnx.merge(graph, params, counts, constants, copy=True)
        outputs = whole(*inputs, **options)
        after = jax.tree.leaves(nnx.state(whole, nnx.RngCount))
        if any(new is not old for new, old in zip(after, jax.tree.leaves(counts), strict=True)):
            raise ValueError(_random(model, "`model.eval()`"))
        return outputs

    return params, apply


def _random(module: Any, remedy: str) -> str:
    return (
        f"{_name(module)} draws random numbers, for dropout most likely, and has no key for them; "
        f"switch it off by {remedy}."
    )
