"""Out of the bank: a task as a plain checkpoint, and the model as a compiled program for other runtimes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from .._types import AnyTree
from ..runs.files import write_atomically
from .errors import BankError
from .safetensors import write_tensors
from .serve import on_row


def check_free(path: Path, replace: bool) -> None:
    if path.exists() and not replace:
        raise BankError(f"{path} is there already; name another file, or pass `replace=True`.")


def write_checkpoint(path: Path, paths: tuple[str, ...], leaves: list[Any], task: str) -> None:
    """All parameters by their paths, which for a PyTorch model are the names of its `state_dict`."""
    tensors = {name: np.asarray(leaf) for name, leaf in zip(paths, leaves, strict=True)}
    write_tensors(path, tensors, {"format": "pt", "task": task})


def write_program(
    path: Path,
    apply: Callable[..., Any],
    treedef: Any,
    paths: tuple[str, ...],
    leaves: tuple[Any, ...],
    inputs: AnyTree,
    points: bool,
) -> None:
    """`program(weights, inputs)` for `jax.export`: weights by path, as in a checkpoint, and any number of rows."""

    def program(weights: dict[str, Any], rows: Any) -> Any:
        params = treedef.unflatten([weights[name] for name in paths])
        return jax.vmap(lambda row: on_row(apply, points)(params, row))(rows)

    scope = jax.export.SymbolicScope()

    def any_rows(leaf: Any) -> jax.ShapeDtypeStruct:
        dims = ("rows", *map(str, jnp.shape(leaf)[1:]))
        shape = jax.export.symbolic_shape(", ".join(dims) + ("," if len(dims) == 1 else ""), scope=scope)
        return jax.ShapeDtypeStruct(shape, jnp.result_type(leaf))

    weights = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in zip(paths, leaves, strict=True)}
    exported = jax.export.export(jax.jit(program))(weights, jax.tree.map(any_rows, inputs))
    try:
        content = exported.serialize()
    except ImportError as error:
        raise BankError("A compiled program is written by flatbuffers: pip install 'shrinx[export]'.") from error
    write_atomically(path, lambda file: file.write(content))
