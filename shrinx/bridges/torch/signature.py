"""What a call looks like: shapes and dtypes of its arrays, and everything in it that is no array."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .weights import has_64_bits, import_torch


@dataclass(frozen=True)
class Signature:
    """Calls of one signature share an exported program. 1, 1.0 and True are not the same."""

    weights: tuple[jax.ShapeDtypeStruct, ...]
    inputs: tuple[tuple[type, Any], ...]
    structure: Any
    wide: bool

    @staticmethod
    def of(weights: Sequence[Any], inputs: Sequence[Any], structure: Any) -> "Signature":
        return Signature(
            tuple(_shape(weight) for weight in weights),
            tuple(
                (type(leaf), leaf) if not isinstance(leaf, jax.Array) else (jax.Array, _shape(leaf)) for leaf in inputs
            ),
            structure,
            has_64_bits(),
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{leaf.dtype}{list(leaf.shape)}" if kind is jax.Array else repr(leaf) for kind, leaf in self.inputs
        )

    def weight_tensors(self) -> list[Any]:
        """Tensors for PyTorch to look at the shapes of."""
        torch = import_torch()
        return [torch.empty(weight.shape, dtype=getattr(torch, str(weight.dtype))) for weight in self.weights]

    def input_tensors(self) -> Any:
        return jax.tree.unflatten(
            self.structure, [self._tensor(leaf) if kind is jax.Array else leaf for kind, leaf in self.inputs]
        )

    def _tensor(self, leaf: jax.ShapeDtypeStruct) -> Any:
        torch = import_torch()
        # Indices are 64 bits in PyTorch and 32 in JAX, unless it has been told otherwise.
        name = "int64" if leaf.dtype == np.int32 and not self.wide else str(leaf.dtype)
        if not hasattr(torch, name):
            raise TypeError(f"PyTorch has no dtype {name}")
        return torch.zeros(leaf.shape, dtype=getattr(torch, name))


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def flatten_inputs(inputs: tuple, named: dict[str, Any]) -> tuple[list[Any], Any]:
    """Arrays as JAX has them; whatever is no array is handed to PyTorch as it is."""
    leaves, structure = jax.tree.flatten((inputs, named), is_leaf=lambda leaf: leaf is None)
    if any(isinstance(leaf, import_torch().Tensor) for leaf in leaves):
        raise TypeError("The inputs are tensors of PyTorch; give arrays: `jax.numpy.asarray(tensor.numpy())`.")
    return [jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves], structure
