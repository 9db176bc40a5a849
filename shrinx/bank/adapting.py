"""Adapting into a bank: the task-specific modules only, until the posterior objective has converged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray

from .._check import check_at_least
from .._prior import Prior
from .._problem import Problem, make_problem
from .._solver import AbstractSolver
from .._task import Task, check_tasks
from .._tree import tree_where
from .._types import Data, LossFn, Params, SampleFn, Scalar
from .bank import Bank
from .errors import BankError
from .names import check_name
from .posterior import POSTERIORS, check_structure, posterior_of

WINDOW = 100
"""Steps between two looks at the objective."""


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
    scale: float = 1.0,
) -> TaskReport:
    r"""Adapt the task-specific modules to a task, or to a batch of tasks at once, and put the result into the bank.

    $$ \hat\theta = \arg\min_\theta \; \ell(\theta; \text{data}) + \sum_m \|\theta_m - \phi_m\|^2 / 2\sigma_m^2 $$

    It stops when a hundred steps change the mean of this objective by less than `tolerance` times its whole decrease.
    The learned prior is what keeps parameters from overfitting, so no validation data is needed to stop in time.
    Gradients and the solver's state exist for the task-specific modules only.

    **Arguments:**

    - `bank`: where model and prior come from and the result goes to.
    - `loss_fn`, `solver`, `key`, `sample`: as in [`adapt`][shrinx.adapt].
    - `names`: the task's name, or one per task.
    - `data`: the task's data; for several tasks every array has a leading axis, one entry per task.
    - `max_steps`, `tolerance`: when to stop.
    - `chunk_size`: so many tasks at a time; all by default.
    - `scale`: for a bank that keeps posteriors; what `loss_fn` must be multiplied by to be the negative log-likelihood
      of all the data, see [`laplace`][shrinx.laplace].

    **Returns:** a `TaskReport`. If a task's loss is not finite, the others are stored and an error names it.

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
    if not tolerance > 0:
        raise ValueError(f"`tolerance` must be positive, got {tolerance}.")
    if chunk_size is not None:
        check_at_least("chunk_size", chunk_size, 1)
    if isinstance(names, str):
        names, data = (names,), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], data)
    names = tuple(map(check_name, names))
    if len(set(names)) < len(names):
        raise BankError(f"Tasks are named twice: {sorted({name for name in names if names.count(name) > 1})}.")
    count = check_tasks(Task(support=data))
    if count != len(names):
        raise BankError(f"There are {len(names)} names and data of {count} tasks; arrays need one entry per task.")
    prior = bank.prior
    if bank.posterior is not None:
        check_structure(bank.posterior, prior.restrict(bank.selected)[0], scale)
    keys = None if key is None else jax.random.split(key, count)
    options = (int(max_steps), tolerance, bank.selected, bank.posterior, scale, chunk_size or count)
    result: _Result = _adapt_all(loss_fn, prior, data, keys, solver, sample, *options)
    result = jax.tree.map(np.asarray, result)
    _store(bank, names, result)
    return TaskReport(names, result.num_steps, result.loss, result.objective, result.residual, result.converged)


class _Result(NamedTuple):
    part: Any
    posterior: Any
    num_steps: Any
    loss: Any
    objective: Any
    residual: Any
    converged: Any
    failed: Any


def _store(bank: Bank, names: tuple[str, ...], result: _Result) -> None:
    for index, name in enumerate(names):
        if not result.failed[index]:
            posterior = None
            if result.posterior is not None:
                posterior = POSTERIORS[str(bank.posterior)](jnp.asarray(result.posterior[index]))
            bank.put_part(name, [leaf[index] for leaf in result.part], posterior)
    failed = [name for name, failure in zip(names, result.failed, strict=True) if failure]
    if failed:
        raise BankError(
            f"Adaptation met a loss or gradient that is not finite for {failed}: not stored (the other "
            f"{len(names) - len(failed)} tasks are). Look at the data, or lower the solver's learning rate."
        )


@eqx.filter_jit
def _adapt_all(
    loss_fn: LossFn,
    prior: Prior,
    data: Data,
    keys: Key[Array, " tasks"] | None,
    solver: AbstractSolver,
    sample: SampleFn | None,
    max_steps: int,
    tolerance: float,
    selected: tuple[str, ...],
    posterior: str | None,
    scale: float,
    chunk_size: int,
) -> _Result:
    def one(inputs: tuple[Data, PRNGKeyArray | None]) -> _Result:
        task_data, key = inputs
        problem = make_problem(
            loss_fn, prior, task_data, solver, num_steps=1, key=key, sample=sample, trainable=selected
        )
        return _converge(problem, max_steps, tolerance, posterior, scale)

    return jax.lax.map(one, (data, keys), batch_size=chunk_size)


class _State(NamedTuple):
    displacement: Params
    solver: Any
    num_steps: Int[Array, ""]
    loss: Scalar
    objective: Scalar
    gradient_norm: Scalar
    first_objective: Scalar
    first_norm: Scalar
    converged: Bool[Array, ""]
    failed: Bool[Array, ""]


def _converge(problem: Problem, max_steps: int, tolerance: float, structure: str | None, scale: float) -> _Result:
    prior = problem.prior
    part, restriction = prior.restrict(problem.trainable or ())
    window = min(WINDOW, max_steps)

    def loss_at(params: Params, batch: Data) -> Scalar:
        return problem.loss_fn(restriction.merge(params, prior.mean), batch)

    def step(carry: Any, index: Array) -> tuple[Any, Any]:
        displacement, state, failed = carry
        batch = problem.batch(index)
        energy = part.energy(part.at(displacement))
        moved, new_state, info = problem.solver.step(
            lambda delta: loss_at(part.at(delta), batch), displacement, state, part
        )
        failed |= ~(jnp.isfinite(info.loss) & jnp.isfinite(info.gradient_norm))
        carry = tree_where(~failed & (index < max_steps), (moved, new_state), (displacement, state))
        return (*carry, failed), (info.loss.astype(energy.dtype), energy, info.gradient_norm)

    def advance(state: _State) -> _State:
        indices = state.num_steps + jnp.arange(window, dtype=jnp.int32)
        carry = (state.displacement, state.solver, state.failed)
        (displacement, solver, failed), (losses, energies, norms) = jax.lax.scan(step, carry, indices)
        objective = jnp.mean(losses + energies)
        start = state.num_steps == 0
        first_objective = jnp.where(start, losses[0] + energies[0], state.first_objective)
        # The last term is what rounding alone may change.
        change = tolerance * jnp.abs(first_objective - objective) + 1e-6 * jnp.abs(objective)
        return _State(
            displacement=displacement,
            solver=solver,
            num_steps=jnp.minimum(state.num_steps + window, max_steps),
            loss=jnp.mean(losses),
            objective=objective,
            gradient_norm=norms[-1],
            first_objective=first_objective,
            first_norm=jnp.where(start, norms[0], state.first_norm),
            converged=~start & (jnp.abs(state.objective - objective) <= change),
            failed=failed,
        )

    def unfinished(state: _State) -> Bool[Array, ""]:
        return ~state.converged & ~state.failed & (state.num_steps < max_steps)

    dtype = prior.log_variance.dtype
    zeros = jax.tree.map(jnp.zeros_like, part.mean)
    no = jnp.zeros((), bool)
    nothing = (jnp.zeros((), dtype),) * 5
    state = _State(zeros, problem.solver.init(part), jnp.zeros((), jnp.int32), *nothing, converged=no, failed=no)
    state = jax.lax.while_loop(unfinished, advance, state)
    params = part.at(state.displacement)
    posterior = None
    if structure is not None:
        posterior = posterior_of(lambda p: loss_at(p, problem.data), part, params, structure, scale).array
    residual = state.gradient_norm / jnp.where(state.first_norm > 0, state.first_norm, 1)
    return _Result(
        params, posterior, state.num_steps, state.loss, state.objective, residual, state.converged, state.failed
    )
