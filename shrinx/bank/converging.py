"""Adapting until the posterior objective has converged, in pieces that can be watched and interrupted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PRNGKeyArray

from .._averaging import Averaged
from .._pace import Pace
from .._prior import Prior, module_energies
from .._problem import Problem, make_problem
from .._solver import AbstractSolver
from .._tree import tree_norm, tree_where
from .._types import Data, LossFn, Params, SampleFn, Scalar
from .posterior import posterior_of

WINDOW = 100
"""Steps between two looks at the objective."""
ROUNDING = 1e-6
"""What rounding alone may change of an objective, relative to its size."""
SETTLED = 0.01
"""Relative to its size, what may be left of the way in an average of steps."""


class Descent(eqx.Module):
    """What the tasks of a batch have in common."""

    loss_fn: LossFn
    prior: Prior
    solver: AbstractSolver
    sample: SampleFn | None
    selected: tuple[str, ...] = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    posterior: str | None = eqx.field(static=True)
    loss_scale: float = eqx.field(static=True)

    def problem(self, data: Data, key: PRNGKeyArray | None) -> Problem:
        return make_problem(
            self.loss_fn,
            self.prior,
            data,
            self.solver,
            num_steps=1,
            key=key,
            sample=self.sample,
            trainable=self.selected,
        )


class State(NamedTuple):
    """Where a task is. Sums are over the steps of the window so far, means over the window before it."""

    displacement: Params
    solver: Any
    num_steps: Int[Array, ""]
    loss_sum: Scalar
    objective_sum: Scalar
    loss: Scalar
    objective: Scalar
    gradient_norm: Scalar
    first_objective: Scalar
    first_norm: Scalar
    converged: Bool[Array, ""]
    failed: Bool[Array, ""]
    answer: Params | None
    """Where the average was at the last look, if steps are averaged."""


class Result(NamedTuple):
    """Where the tasks of a batch have come to, each leaf with a leading axis."""

    part: Any
    posterior: Any
    num_steps: Any
    loss: Any
    objective: Any
    residual: Any
    converged: Any
    failed: Any


def converge(
    descent: Descent, data: Data, keys: Key[Array, " tasks"] | None, report: Callable[[int], object]
) -> Result:
    """Adapt to a batch of tasks side by side; `report` is told again and again how many steps were made."""
    count = len(jax.tree.leaves(data)[0])
    report(0)
    state, done, pace, finished = start(descent, count), 0, Pace(), False
    while not finished:
        done += pace.length
        state = advance(descent, data, keys, state, jnp.asarray(done, jnp.int32))
        finished = bool(np.all(_is_over(descent, state)))
        report(int(np.max(state.num_steps)))
        pace.lap()
    return jax.tree.map(np.asarray, finish(descent, data, keys, state))


@eqx.filter_jit
def start(descent: Descent, count: int) -> State:
    part, _ = descent.prior.restrict(descent.selected)
    zeros = part.zeros()
    nothing = (jnp.zeros((), descent.prior.log_variance.dtype),) * 7
    no = jnp.zeros((), bool)
    answer = zeros if isinstance(descent.solver, Averaged) else None
    state = State(
        zeros, descent.solver.init(part), jnp.zeros((), jnp.int32), *nothing, converged=no, failed=no, answer=answer
    )
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), state)


@eqx.filter_jit
def advance(
    descent: Descent, data: Data, keys: Key[Array, " tasks"] | None, state: State, until: Int[Array, ""]
) -> State:
    """To the step `until`, or to the end. How a way is cut into pieces changes nothing about where it leads."""

    def one(data: Data, key: PRNGKeyArray | None, state: State) -> State:
        problem = descent.problem(data, key)
        return jax.lax.while_loop(
            lambda state: ~_is_over(descent, state) & (state.num_steps < until),
            lambda state: _step(descent, problem, state),
            state,
        )

    return jax.vmap(one)(data, keys, state)


@eqx.filter_jit
def finish(descent: Descent, data: Data, keys: Key[Array, " tasks"] | None, state: State) -> Result:
    part, _ = descent.prior.restrict(descent.selected)

    def one(data: Data, key: PRNGKeyArray | None, state: State) -> Result:
        params, posterior = part.at(descent.solver.solution(state.displacement, state.solver)), None
        if descent.posterior is not None:
            loss_at = _loss_of_part(descent)
            posterior = posterior_of(
                lambda p: loss_at(p, data), part, params, descent.posterior, descent.loss_scale
            ).array
        residual = state.gradient_norm / jnp.where(state.first_norm > 0, state.first_norm, 1)
        measured = state.num_steps, state.loss, state.objective, residual, state.converged, state.failed
        return Result(params, posterior, *measured)

    return jax.vmap(one)(data, keys, state)


def _is_over(descent: Descent, state: State) -> Bool[Array, "..."]:
    return state.converged | state.failed | (state.num_steps >= descent.max_steps)


def _loss_of_part(descent: Descent) -> LossFn:
    _, restriction = descent.prior.restrict(descent.selected)
    return lambda params, batch: descent.loss_fn(restriction.merge(params, descent.prior.mean), batch)


def _step(descent: Descent, problem: Problem, state: State) -> State:
    part, _ = descent.prior.restrict(descent.selected)
    loss_at, batch = _loss_of_part(descent), problem.batch(state.num_steps)
    energy = jnp.sum(module_energies(part, state.displacement))  # Not of parameters: 16 bits would round it away.
    moved, solver, info = problem.solver.step(
        lambda delta: loss_at(part.at(delta), batch), state.displacement, state.solver, part
    )
    failed = ~info.is_finite
    loss, norm = info.loss.astype(energy.dtype), info.gradient_norm.astype(energy.dtype)
    first = state.num_steps == 0
    first_objective = jnp.where(first, loss + energy, state.first_objective)

    num_steps = state.num_steps + 1
    in_window = state.num_steps % WINDOW + 1
    loss_sum, objective_sum = state.loss_sum + loss, state.objective_sum + loss + energy
    full = (in_window == WINDOW) | (num_steps == descent.max_steps) | failed
    objective = objective_sum / in_window.astype(energy.dtype)
    first_norm = jnp.where(first, norm, state.first_norm)
    decrease, rounding = jnp.abs(first_objective - objective), ROUNDING * jnp.abs(objective)
    stays = jnp.abs(state.objective - objective) <= descent.tolerance * decrease + rounding
    # Steps too short to change the objective by more than rounding look as if they had arrived; the gradient knows.
    arrived = stays & ((decrease > 10 * rounding) | (norm <= 0.9 * first_norm))
    displacement, solver = tree_where(failed, (state.displacement, state.solver), (moved, solver))
    answer = None if state.answer is None else descent.solver.solution(displacement, solver)
    settled = _has_settled(descent.solver, state.answer, answer)
    return State(
        displacement=displacement,
        solver=solver,
        num_steps=num_steps,
        loss_sum=jnp.where(full, 0, loss_sum),
        objective_sum=jnp.where(full, 0, objective_sum),
        loss=jnp.where(full, loss_sum / in_window.astype(energy.dtype), state.loss),
        objective=jnp.where(full, objective, state.objective),
        gradient_norm=norm,
        first_objective=first_objective,
        first_norm=first_norm,
        converged=full & (num_steps > WINDOW) & arrived & settled & ~failed,
        failed=failed,
        answer=tree_where(full, answer, state.answer),
    )


def _has_settled(solver: AbstractSolver, before: Params | None, now: Params | None) -> Bool[Array, ""]:
    """When the steps have arrived, their average still holds some of the way: what it moves by in one more window."""
    if not isinstance(solver, Averaged):
        return jnp.ones((), bool)
    change = tree_norm(jax.tree.map(jnp.subtract, now, before)) * max(1.0, solver.window / WINDOW)
    return change <= SETTLED * tree_norm(now)
