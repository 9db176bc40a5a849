"""A module of PyTorch as parameters and a function of JAX."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ..._types import AnyTree
from .operators import OPERATORS, Operators
from .program import Program, make_program
from .signature import Signature, flatten_inputs
from .weights import check_params, frozen_copy, named_weights, to_array


def from_torch(module: Any, *, operators: Operators | None = None) -> tuple[dict[str, Array], Callable[..., Any]]:
    """An unmodified `torch.nn.Module` as parameters and a function of JAX, to be differentiated, compiled and mapped
    over tasks with weights of their own.

    PyTorch exports the graph of the module (`torch.export`), once for every new shape of the inputs, and JAX runs it.

    - **Parameters** are what PyTorch would train: those with `requires_grad`. The others, and all buffers, are
      constants with the values they have now. `detach` and `no_grad` stop gradients in JAX too.
    - **Batch norm** in training mode uses the statistics of the batch and leaves the running ones as they are; in
      evaluation mode it uses the running ones. The mode is that of the module now.
    - **Dropout** must be off: `module.eval()`, or `.eval()` on its dropout layers alone.

    **Arguments:**

    - `module`: a module that `torch.export` accepts: no Python control flow that depends on values.
    - `operators`: functions of JAX for operators that are missing here or shall be done in another way, by the name
      that PyTorch gives them: `{"aten.convolution": my_convolution}`. They take what the ATen operator takes.

    **Returns:** `(params, apply)`: a dictionary from the names of the `state_dict` to arrays, and
    `apply(params, *inputs)`, which takes arrays (and keywords) where `forward` takes tensors.
    [`to_state_dict`][shrinx.to_state_dict] is the way back.

    >>> import jax, jax.numpy as jnp, shrinx as sx, torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> params, apply = sx.from_torch(module)
    >>> sx.by_layer(params).names, apply(params, jnp.ones((5, 3))).shape
    (('0', '2'), (5, 1))
    >>> per_task = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), params)
    >>> jax.vmap(apply, in_axes=(0, None))(per_task, jnp.ones((5, 3))).shape
    (2, 5, 1)
    """
    weights = named_weights(module)
    fixed = frozen_copy(module, weights)
    named_tensors = (*fixed.named_parameters(), *fixed.named_buffers())
    constants = {name: to_array(tensor) for name, tensor in named_tensors if name not in weights}
    table = OPERATORS if operators is None else {**OPERATORS, **operators}

    @functools.cache
    def program(signature: Signature) -> Program:
        return make_program(fixed, tuple(weights), constants, signature, table)

    def apply(params: AnyTree, /, *inputs: Any, **named: Any) -> Any:
        check_params(params, weights)
        arrays = [jnp.asarray(params[name]) for name in weights]
        leaves, structure = flatten_inputs(inputs, named)
        return program(Signature.of(arrays, leaves, structure))([*arrays, *leaves])

    return {name: to_array(weight) for name, weight in weights.items()}, apply
