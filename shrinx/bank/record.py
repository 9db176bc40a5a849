"""From a task's parameters to what is stored of them, with every reason to refuse."""

from typing import Any

import numpy as np

from .base import Base, Index
from .delta import POSTERIOR, Delta, encode
from .errors import BankError
from .posterior import POSTERIORS, AbstractPosterior


def make_delta(base: Base, index: Index, name: str, part: Any, posterior: AbstractPosterior | None) -> Delta:
    """The task-specific modules `part` of the task `name`, as the bank keeps them."""
    values = tuple(np.asarray(array) for array in part)
    found, expected = ([(value.shape, value.dtype.name) for value in values] for values in (values, base.part))
    if found != expected:
        raise BankError(f"The task-specific modules of {name!r} are arrays {found}, the base has {expected}.")
    if not all(np.isfinite(value.astype(np.float64)).all() for value in values):
        raise BankError(f"The parameters of {name!r} are not finite: its adaptation has diverged.")
    delta = encode(base.restriction.part.paths, values, base.part, index.compression)
    if posterior is not None:
        delta.tensors[POSTERIOR] = _posterior_array(base, index, posterior)
    return delta


def check_shared(base: Base, name: str, leaves: list[Any]) -> None:
    """Refuse parameters that differ from the base where all tasks are the same."""
    expected = base.restriction.merge(base.restriction.extract(tuple(leaves)), base.prior.mean)
    moved = [
        path
        for path, leaf, shared in zip(base.modules.paths, leaves, expected, strict=True)
        if not np.array_equal(np.asarray(leaf), np.asarray(shared), equal_nan=True)
    ]
    if moved:
        raise BankError(
            f"The parameters of {name!r} differ from the base in {moved}, outside the task-specific modules "
            f"{list(base.selected)}: adapt with `trainable=bank.selected`, or drop it with `strict=False`."
        )


def _posterior_array(base: Base, index: Index, posterior: AbstractPosterior) -> np.ndarray:
    got = type(posterior)
    if POSTERIORS.get(str(index.posterior)) is not got:
        raise BankError(f"The bank keeps {index.posterior or 'no'} posteriors, got a {got.__name__}.")
    array = np.asarray(posterior.array)
    expected = (sum(base.restriction.part.sizes),) * array.ndim
    if array.shape != expected:
        raise BankError(
            f"Got a posterior of shape {array.shape}, expected {expected}: that of the modules {list(base.selected)}."
        )
    return array
