"""The weights of a module: out of PyTorch, checked, and back into a `state_dict`."""

import copy
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._types import AnyTree


def import_torch() -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ImportError("The bridge to PyTorch needs PyTorch: pip install 'shrinx[torch]'.") from error
    return torch


def to_jax_dtype(dtype: Any) -> Any:
    """PyTorch's dtype in JAX, which has 64 bits only when they are enabled."""
    return jax.dtypes.canonicalize_dtype(str(dtype).removeprefix("torch."))


def has_64_bits() -> bool:
    return to_jax_dtype("int64") == np.int64


def to_array(tensor: Any) -> Array:
    """A copy: what PyTorch does to the tensor later does not reach it."""
    tensor = tensor.detach().cpu()
    # NumPy has no bfloat16; float32 holds all its values.
    wide = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    with jax.ensure_compile_time_eval():  # A value, also when somebody is tracing.
        return jnp.array(wide.numpy(), to_jax_dtype(tensor.dtype))


def to_tensor(array: Any) -> Any:
    wide = np.float64 if array.dtype == np.float64 else np.float32
    return import_torch().from_numpy(np.array(array, wide))


def named_weights(module: Any) -> dict[str, Any]:
    """What PyTorch would train, by its names."""
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"Expected a `torch.nn.Module`, got {type(module).__name__}.")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("A module compiled by `torch.jit` has no Python left to export; give the one it was made from.")
    weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    if not weights:
        raise ValueError(
            f"{type(module).__name__} has no parameters with `requires_grad`; `module.requires_grad_()` makes all of "
            "them trainable."
        )
    for name, weight in weights.items():
        if torch.nn.parameter.is_lazy(weight):
            raise ValueError(f"Parameter '{name}' has no shape yet; call the module once in PyTorch first.")
        if not weight.is_floating_point():
            raise TypeError(f"Parameter '{name}' has dtype {weight.dtype}; only real floating numbers can be adapted.")
        if weight.dtype == torch.float64 and not has_64_bits():
            raise ValueError(
                f"Parameter '{name}' has dtype torch.float64; call `module.float()`, or enable 64 bits in JAX by "
                '`jax.config.update("jax_enable_x64", True)`.'
            )
    return weights


def frozen_copy(module: Any, weights: Mapping[str, Any]) -> Any:
    """The module as it is now, safe from later changes; its weights are given at every call and not copied."""
    torch = import_torch()
    empty = {id(w): torch.nn.Parameter(torch.empty_like(w, device="cpu")) for w in weights.values()}
    return copy.deepcopy(module, empty).cpu()


def shallow_copy(module: Any) -> Any:
    """Another module with the same tensors, for PyTorch to scribble on."""
    return copy.deepcopy(module, {id(t): t for t in (*module.parameters(), *module.buffers())})


def check_params(params: AnyTree, weights: Mapping[str, Any]) -> None:
    if not isinstance(params, Mapping):
        raise TypeError(
            f"`params` must be a dictionary from names of parameters to arrays, got {type(params).__name__}."
        )
    missing, unknown = [n for n in weights if n not in params], [n for n in params if n not in weights]
    if missing or unknown:
        raise ValueError(f"`params` does not match the module: {missing} are missing, {unknown} are unknown.")
    for name, weight in weights.items():
        array = params[name]
        is_array = isinstance(array, jax.Array | np.ndarray)
        if not is_array or not jnp.issubdtype(array.dtype, jnp.floating):
            kind = f"dtype {array.dtype}" if is_array else type(array).__name__
            raise TypeError(f"`params['{name}']` must be an array of floating numbers, got {kind}.")
        if array.shape != tuple(weight.shape):
            raise ValueError(
                f"`params['{name}']` has shape {array.shape}, the module's {tuple(weight.shape)}; for the parameters "
                "of many tasks use `jax.vmap`, or choose one: `jax.tree.map(lambda x: x[0], params)`."
            )


def to_state_dict(module: Any, params: AnyTree) -> dict[str, Any]:
    """Adapted parameters as a complete `state_dict`, to be saved or loaded by PyTorch.

    **Arguments:** `module`, the one `params` came from by [`from_torch`][shrinx.from_torch], and `params`.

    **Returns:** a copy of `module.state_dict()` with the values of `params`, in the module's dtypes and on its devices,
    under all their names where weights are tied. Buffers (running statistics, counters) and parameters without
    `requires_grad` keep the module's values. The module does not change; `module.load_state_dict(...)` changes it.

    >>> import jax, shrinx as sx, torch
    >>> module = torch.nn.Linear(2, 1)
    >>> params, apply = sx.from_torch(module)
    >>> adapted = jax.tree.map(lambda x: 0 * x + 3, params)
    >>> module.load_state_dict(sx.to_state_dict(module, adapted))
    <All keys matched successfully>
    >>> module.bias
    Parameter containing:
    tensor([3.], requires_grad=True)
    """
    weights = named_weights(module)
    check_params(params, weights)
    names = {id(weight): name for name, weight in weights.items()}
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if id(weight) in names:
            state[name] = to_tensor(params[names[id(weight)]]).to(weight)
    return state
