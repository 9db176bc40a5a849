"""What is asked of a loss: one floating number, and that rows which are not there do not count."""

from typing import Any

import jax
import jax.numpy as jnp

from ._check import SHOWN
from ._modules import _named_leaves
from ._rows import Rows
from ._types import AnyTree

_CALLS = ("jit", "pjit", "checkpoint", "remat2")
"""What hands its arguments on to a program as they are: `jax.jit` and `jax.checkpoint`, by all their names."""


def check_loss(loss_fn: Any, params: AnyTree, batch: AnyTree, what: str = "loss_fn") -> None:
    """Trace `loss_fn` once, abstractly: it must give one floating number, and heed the weights of `Rows`."""
    if not callable(loss_fn):
        raise TypeError(f"`{what}` must be a function of parameters and a batch, got {type(loss_fn).__name__}.")
    try:
        result = jax.eval_shape(loss_fn, params, batch)
    except Exception as error:
        # The mistake is the caller's and its traceback theirs; what their function was given is what they do not see.
        named = _named_leaves(batch, "array")
        shapes = ", ".join(f"{path} {list(jnp.shape(leaf))}" for path, leaf in named[:SHOWN])
        shapes += f" and {len(named) - SHOWN} more (lists in place of arrays?)" if len(named) > SHOWN else ""
        error.add_note(
            f"`{what}` was called with one task's batch: {shapes}. Is that what it expects? Where several tasks are "
            "given at once, all their arrays need a leading task axis, which is gone here."
        )
        raise
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
    if shape != () or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        got = "a " + type(result).__name__ if shape is None else f"shape {shape} and dtype {dtype}"
        raise ValueError(
            f"`{what}` must return one floating number (shape ()), got {got}; take a sum or a mean over the batch."
        )
    if _ignores_weights(loss_fn, params, batch):
        raise ValueError(
            f"`{what}` takes no account of the weights of its `Rows`: padding, and rows that `split` gave to the other "
            "part, would count like all others, so that tasks learn what they are judged by. Add up one number for "
            "each row by `batch.sum(...)`, or `batch.mean(...)`."
        )


def _ignores_weights(loss_fn: Any, params: AnyTree, batch: AnyTree) -> bool:
    def is_rows(part: Any) -> bool:
        return isinstance(part, Rows)

    def marks(part: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf is part.weights, part) if is_rows(part) else False

    given = jax.tree.leaves(jax.tree.map(marks, batch, is_leaf=is_rows))
    if not any(given):
        return False
    program = jax.make_jaxpr(loss_fn)(*jax.eval_shape(lambda *trees: trees, params, batch)).jaxpr
    return not any(_reached(program, [False] * len(jax.tree.leaves(params)) + given))


def _reached(program: Any, given: list[bool]) -> list[bool]:
    """Which results of a program may depend on the arguments that are `given`."""
    known = {var for var, mark in zip(program.invars, given, strict=True) if mark}

    def depends(var: Any) -> bool:
        return not hasattr(var, "val") and var in known  # Literals have a value.

    for part in program.eqns:
        marks = [depends(var) for var in part.invars]
        inner = part.params.get("jaxpr") if part.primitive.name in _CALLS else None
        found = [any(marks)] * len(part.outvars)
        if inner is not None:
            found = _reached(getattr(inner, "jaxpr", inner), marks)
        known.update(var for var, mark in zip(part.outvars, found, strict=True) if mark)
    return [depends(var) for var in program.outvars]
