"""Predictions for a batch whose rows belong to different tasks: one compiled call.

Shared modules are not mapped over, so that they act on the whole batch at once, as they would for one task. The
task-specific ones are gathered, one per row, from the stack of tasks at hand.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .._modules import Restriction
from .._types import AnyTree
from .base import Base
from .delta import POSTERIOR, Delta, Part
from .errors import BankError
from .posterior import POSTERIORS
from .residents import Residents
from .store import Store

# Enough for the functions one bank serves; of lambdas made anew for every call no more than these are kept.
_PROGRAMS = 16


class Prediction(NamedTuple):
    """Outputs of the adapted network (`mean`) and the standard deviation of each under the task's posterior.

    The deviation is that of the network's output, without the noise of observations: with noise of deviation ν an
    interval of 95 % is `mean` ± 1.96 √(`deviation`² + ν²).
    """

    mean: Any
    deviation: Any


class Server:
    """Serves the tasks of one bank from one copy of its model. For any number of threads."""

    def __init__(self, base: Base, treedef: Any, store: Store, posterior: str | None, capacity: int):
        self._base = base
        self._treedef = treedef
        self._posterior = posterior
        self._certain = Residents(store, lambda name: base.values(name, store.read(name)), capacity)
        self._uncertain = Residents(store, lambda name: _with_posterior(base, name, store.read(name)), capacity)
        self._programs: OrderedDict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def predict(
        self, apply: Callable[..., Any], names: Sequence[str], inputs: AnyTree, *, points: bool, uncertainty: bool
    ) -> AnyTree | Prediction:
        """See `Bank.predict`."""
        if uncertainty and self._posterior is None:
            raise BankError("The bank keeps no posteriors; make one with `Bank.create(..., posterior='diagonal')`.")
        if not callable(apply):
            raise TypeError(f"`apply` must be a function of parameters and a batch, got {type(apply).__name__}.")
        rows = _check_rows(names, inputs)
        padding = (1 << (rows - 1).bit_length()) - rows
        padded = jax.tree.map(partial(_pad, padding), inputs)
        # The lock covers the dispatch too: the next call may overwrite the stack that this one reads.
        with self._lock:
            residents = self._uncertain if uncertainty else self._certain
            stack, positions = residents.positions(names)
            program = self._program(apply, points, uncertainty)
            try:
                result = program(self._base.prior.mean, stack, _pad(padding, positions), padded)
            except BankError:
                raise
            except Exception as error:
                shapes = jax.tree.map(lambda leaf: np.shape(leaf)[1:] if points else (1, *np.shape(leaf)[1:]), inputs)
                error.add_note(
                    f"`predict` gives every row to `apply` as a batch of {'points' if points else 'one point'}, here "
                    f"of shape {shapes}; see `points` if the rows are {'single points' if points else 'batches'}."
                )
                raise
        return jax.tree.map(lambda leaf: np.asarray(leaf)[:rows], result)

    def _program(self, apply: Callable[..., Any], points: bool, uncertainty: bool) -> Callable[..., Any]:
        key = (_identity(apply), points, uncertainty)
        if key not in self._programs:
            kind = self._posterior if uncertainty else None
            program = _compile(on_row(apply, points), self._base.restriction, self._treedef, kind)
            # The function is kept along, so that nobody else gets its id.
            self._programs[key] = (apply, program)
            if len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        return self._programs[key][1]


def _identity(apply: Callable[..., Any]) -> Any:
    """What tells functions apart: a method is another object at every look, but equal; arrays cannot be hashed."""
    try:
        hash(apply)
    except TypeError:
        return id(apply)
    return apply


def on_row(apply: Callable[..., Any], points: bool) -> Callable[..., Any]:
    """A function of a batch as one of a row, which is a batch of its own or a single point."""
    if points:
        return apply

    def on_point(params: Any, x: Any) -> Any:
        outputs = apply(params, jax.tree.map(lambda leaf: leaf[None], x))
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(outputs)]
        if any(shape[:1] != (1,) for shape in shapes):
            raise BankError(
                f"`apply` must give one output for every point; for a batch of one it gave shapes {shapes}."
            )
        return jax.tree.map(lambda leaf: leaf[0], outputs)

    return on_point


def _with_posterior(base: Base, name: str, delta: Delta) -> tuple[Part, np.ndarray]:
    posterior = delta.tensors.get(POSTERIOR)
    if posterior is None:
        raise BankError(f"Task {name!r} was stored without a posterior; adapt it anew with `adapt_task`.")
    return base.values(name, delta), posterior


def _compile(
    apply: Callable[..., Any], restriction: Restriction, treedef: Any, posterior: str | None
) -> Callable[..., Any]:
    def certain(mean: Any, part: Any, x: Any) -> Any:
        return apply(treedef.unflatten(restriction.merge(part, mean)), x)

    def uncertain(mean: Any, row: Any, x: Any) -> Prediction:
        part, array = row
        answer = jax.eval_shape(certain, mean, part, x)
        if not (hasattr(answer, "dtype") and jnp.issubdtype(answer.dtype, jnp.floating)):
            raise BankError("With `uncertainty=True` what `apply` returns must be one array of floating numbers.")
        flat, unravel = ravel_pytree(part)
        jacobian = jax.jacrev(lambda vector: certain(mean, unravel(vector), x))(flat)
        variance = POSTERIORS[str(posterior)](array).variance(jacobian)
        return Prediction(certain(mean, part, x), jnp.sqrt(variance))

    def program(mean: Any, stack: Any, positions: Any, inputs: Any) -> Any:
        rows = jax.tree.map(lambda whole: whole.at[positions].get(mode="promise_in_bounds"), stack)
        return jax.vmap(partial(certain if posterior is None else uncertain, mean))(rows, inputs)

    return jax.jit(program)


def _check_rows(names: Sequence[str], inputs: AnyTree) -> int:
    # Sets and dictionaries have no order that rows could follow.
    if isinstance(names, str) or not isinstance(names, Sequence | np.ndarray) or not len(names):
        raise BankError(f"`names` must be a list with one task for every row of the inputs, got {names!r}.")
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(inputs)]
    if not shapes or any(not shape or shape[0] != len(names) for shape in shapes):
        raise BankError(
            f"`inputs` must have one row for each of the {len(names)} named tasks, got shape{'s' * (len(shapes) != 1)} "
            f"{', '.join(map(str, shapes)) or 'none'}."
        )
    return len(names)


def _pad(padding: int, array: Any) -> np.ndarray:
    # On the host: cutting and padding on the device would compile for every size.
    array = np.asarray(array)
    return np.concatenate([array, np.repeat(array[:1], padding, axis=0)]) if padding else array
