"""Adapting into a bank: the task-specific modules only, until the posterior objective has converged."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._check import check_at_least, check_data, check_key, check_number
from .._solver import AbstractSolver
from .._task import Task, check_tasks
from .._types import Data, LossFn, SampleFn
from .bank import Bank
from .converging import Descent, Result, converge
from .delta import as_arrays
from .errors import BankError
from .names import check_name
from .posterior import POSTERIORS, check_structure


@dataclass(frozen=True, eq=False)
class TaskReport:
    """How adaptation went, one entry per task.

    **Attributes:** `names`; `num_steps` taken; `loss` and `objective` (loss plus the prior's energy), means over the
    last hundred steps; `residual`, the last gradient norm of the objective relative to the first; `converged`: false
    if `max_steps` came first.
    """

    names: tuple[str, ...]
    num_steps: np.ndarray
    loss: np.ndarray
    objective: np.ndarray
    residual: np.ndarray
    converged: np.ndarray


def adapt_task(
    bank: Bank,
    loss_fn: LossFn,
    names: str | Sequence[str],
    data: Data,
    solver: AbstractSolver,
    *,
    max_steps: int = 10_000,
    tolerance: float = 1e-4,
    key: PRNGKeyArray | None = None,
    sample: SampleFn | None = None,
    chunk_size: int | None = None,
    loss_scale: float = 1.0,
    variance_factor: float = 1.0,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    report: Callable[[int, int], object] | None = None,
) -> TaskReport:
    r"""Adapt the task-specific modules to a task, or to a batch of tasks at once, and put the result into the bank.

    $$ \hat\theta = \arg\min_\theta \; \ell(\theta; \text{data}) + \sum_m \|\theta_m - \phi_m\|^2 / 2\sigma_m^2 $$

    It stops when a hundred steps change the mean of this objective by less than `tolerance` times its whole decrease.
    On mini-batches (`sample`) that takes a rate that falls, [`Averaged`][shrinx.Averaged] or a wider tolerance. Tasks
    that have not converged within `max_steps` are stored as they are: look at `converged` of what is returned.
    The learned prior is what keeps parameters from overfitting, so no validation data is needed to stop in time.
    Gradients and the solver's state exist for the task-specific modules only.

    **Arguments:**

    - `bank`: where model and prior come from and the result goes to.
    - `loss_fn`, `solver`, `key`, `sample`: as in [`adapt`][shrinx.adapt].
    - `names`: the task's name, or one per task.
    - `data`: the task's data; for several tasks every array has a leading axis, one entry per task.
    - `max_steps`, `tolerance`: when to stop.
    - `chunk_size`: so many tasks at a time; all by default.
    - `loss_scale`: for a bank that keeps posteriors; what `loss_fn` must be multiplied by to be the negative
      log-likelihood of all the data, see [`laplace`][shrinx.laplace].
    - `variance_factor`: what the prior's variances are multiplied by; where `loss_fn` is a mean, a task's share of the
      data that the prior was learned with (see [`Prior`][shrinx.Prior], "the scale of the loss").
    - `about`: what `Bank.describe` would be given for a task, by the task's name; stored together with it.
    - `report`: told about once a second how many steps have been made, and how many there may be.

    Nothing is stored before all tasks have been adapted to: interrupted until then, it leaves the bank as it was.

    **Returns:** a `TaskReport`. If a task's loss is not finite, or the bank cannot hold what it has become, the others
    are stored and an error names it.

    >>> import tempfile, jax.numpy as jnp, shrinx as sx
    >>> params = {"slope": jnp.zeros(1), "offset": jnp.zeros(1)}
    >>> prior = sx.Prior.create(params, variance={"slope": 1e3, "offset": 1e-5})
    >>> bank = sx.Bank.create(tempfile.mkdtemp(), prior, "slope")
    >>> x = jnp.linspace(-1, 1, 20)
    >>> def loss_fn(params, batch):
    ...     x, y = batch
    ...     return jnp.sum((params["slope"] * x + params["offset"] - y) ** 2)
    >>> data = (jnp.stack([x, x]), jnp.stack([3 * x, -2 * x]))
    >>> report = sx.adapt_task(bank, loss_fn, ["alice", "bob"], data, sx.ProximalGD(0.02))
    >>> report.converged.tolist(), bank.params("bob")["slope"].round(2)
    ([True, True], Array([-2.], dtype=float32))
    """
    if not isinstance(bank, Bank):
        raise TypeError(f"`bank` must be a `Bank`, got {type(bank).__name__}; open one with `Bank.open(path)`.")
    if isinstance(data, Task):
        raise TypeError("`data` is what tasks are adapted to: pass `task.support`.")
    check_at_least("max_steps", max_steps, 1)
    check_key(key)
    check_number("tolerance", tolerance, positive=True)
    check_number("loss_scale", loss_scale, positive=True)
    if chunk_size is not None:
        check_at_least("chunk_size", chunk_size, 1)
    check_data(data, "data")
    if isinstance(names, str):
        names, data = (names,), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], data)
    elif not isinstance(names, Iterable):
        check_name(names)
    names = tuple(map(check_name, names))
    if len(set(names)) < len(names):
        raise BankError(f"Tasks are named twice: {sorted({name for name in names if names.count(name) > 1})}.")
    count = check_tasks(Task(support=data))
    if count != len(names):
        raise BankError(f"There are {len(names)} names and data of {count} tasks; arrays need one entry per task.")
    about = _described(about or {}, names)
    prior = bank.prior.scale_variance(variance_factor)
    if bank.posterior is not None:
        check_structure(bank.posterior, prior.restrict(bank.selected)[0], loss_scale)
    keys = None if key is None else jax.random.split(key, count)
    options = (int(max_steps), float(tolerance), bank.posterior, float(loss_scale))
    descent = Descent(loss_fn, prior, solver, sample, bank.selected, *options)
    size = chunk_size or count
    firsts = range(0, count, size)
    total = len(firsts) * int(max_steps)
    parts = []
    for place, first in enumerate(firsts):
        own_data, own_keys = jax.tree.map(lambda leaf, first=first: leaf[first : first + size], (data, keys))
        watch = partial(_tell, report, place * int(max_steps), total)
        parts.append(converge(descent, own_data, own_keys, watch))
    result: Result = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    _store(bank, names, result, about)
    return TaskReport(names, result.num_steps, result.loss, result.objective, result.residual, result.converged)


def _tell(report: Callable[[int, int], object] | None, before: int, total: int, done: int) -> None:
    if report is not None:
        report(before + done, total)


def _described(about: Any, names: tuple[str, ...]) -> dict[str, dict[str, np.ndarray]]:
    """Looked at before all the work, not after it."""
    if not isinstance(about, Mapping) or not set(about) <= set(names):
        strange = sorted(map(repr, set(about) - set(names))) if isinstance(about, Mapping) else about
        raise BankError(f"`about` has what describes a task by the task's name, {list(names[:5])}; got {strange}.")
    return {name: as_arrays(described) for name, described in about.items()}


def _store(bank: Bank, names: tuple[str, ...], result: Result, about: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    refused = {}
    for index, name in enumerate(names):
        if not result.failed[index]:
            posterior = None
            if result.posterior is not None:
                posterior = POSTERIORS[str(bank.posterior)](jnp.asarray(result.posterior[index]))
            try:
                bank.put_part(name, [leaf[index] for leaf in result.part], posterior, about.get(name))
            except BankError as error:  # Of this task alone: the others have been adapted to at the same cost.
                refused[name] = str(error)
    failed = [name for name, failure in zip(names, result.failed, strict=True) if failure]
    rest = len(names) - len(failed) - len(refused)
    stored = f" (the other {rest:,} {'task is' if rest == 1 else 'tasks are'})" if rest else ""
    problems = [f"{name!r} is not stored{stored}. {reason}" for name, reason in refused.items()]
    if failed:
        problems.insert(
            0,
            f"Adaptation met a loss or gradient that is not finite for {failed}: not stored{stored}. Look at the data, "
            "lower the solver's learning rate, or use `ProximalBacktracking`.",
        )
    if problems:
        raise BankError(" ".join(problems))
