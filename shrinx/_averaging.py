"""An inner solver that answers with an average of its steps."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ._check import check_at_least
from ._prior import Prior
from ._solver import AbstractSolver, ObjectiveFn, StepInfo
from ._tree import tree_where
from ._types import Params


class _AveragedState(NamedTuple):
    solver: Any
    average: Params
    num_steps: Int[Array, ""]
    failed: Bool[Array, ""]


class Averaged(AbstractSolver[_AveragedState]):
    r"""Another solver, its answer averaged over about the last `window` steps (Polyak and Ruppert).

    $$\bar\theta_t = \bar\theta_{t-1} + \frac{\theta_t - \bar\theta_{t-1}}{\min(t, \text{window})}$$

    On mini-batches a step size that does not fall ends in jitter about the answer. It costs some of the loss, and it
    misleads whoever learns the prior: the jitter is in the displacement θ̂ - φ, looks like overfitting in every
    module, and stronger shrinkage like its cure. Steps are taken as without averaging, which is one more copy of the
    parameters and no more gradients.

    In meta-training it goes with `FirstOrder`, `Implicit` and `Unroll()`. `Unroll(last=k)` would see no more than the
    share that the last k steps have in the average, and so does `Unroll()` of tasks that come back (`Task.progress`).

    Losses, gradient norms and residuals that are reported are still those of the steps.

    **Arguments:** `solver`, any inner solver; `window`, in steps: long against the jitter, short against adaptation.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.mean((theta - x) ** 2)
    >>> sample = lambda key, data: jax.random.choice(key, data, (2,))
    >>> prior, data = sx.Prior.create(jnp.zeros(1), variance=1e6), jnp.array([1.0, 3.0])
    >>> solver = sx.ProximalGD(0.5)
    >>> for each in (solver, sx.Averaged(solver, window=1000)):
    ...     one = sx.adapt(loss_fn, prior, data, each, num_steps=2000, key=jax.random.key(0), sample=sample)
    ...     print(bool(abs(one.params[0] - 2) < 0.05))
    False
    True
    """

    solver: AbstractSolver
    window: int = eqx.field(default=100, static=True)

    def __check_init__(self):
        if not isinstance(self.solver, AbstractSolver):
            raise TypeError(f"`solver` must be an inner solver such as `ProximalGD(0.1)`, got {self.solver!r}.")
        check_at_least("window", self.window, 1)

    def init(self, prior: Prior) -> _AveragedState:
        # In 16 bits a hundredth of a small change would be rounded away.
        average, count, failed = prior.zeros(), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return _AveragedState(self.solver.init(prior), average, count, failed)

    def step(
        self, loss_fn: ObjectiveFn, displacement: Params, state: _AveragedState, prior: Prior
    ) -> tuple[Params, _AveragedState, StepInfo]:
        moved, inner, info = self.solver.step(loss_fn, displacement, state.solver, prior)
        count = state.num_steps + 1
        share = 1 / jnp.minimum(count, self.window).astype(prior.log_variance.dtype)
        answer = self.solver.solution(moved, inner)
        average = jax.tree.map(lambda a, m: a + share.astype(a.dtype) * (m.astype(a.dtype) - a), state.average, answer)
        # A step that is not taken is no part of the answer, nor is what a solver makes of the way after it.
        failed = state.failed | ~info.is_finite
        average = tree_where(failed, state.average, average)
        return moved, _AveragedState(inner, average, count, failed), info

    def resume(self, state: _AveragedState, prior: Prior) -> _AveragedState:
        return state._replace(solver=self.solver.resume(state.solver, prior))

    def squared_gradients(self, state: _AveragedState) -> Params | None:
        return self.solver.squared_gradients(state.solver)

    def solution(self, displacement: Params, state: _AveragedState) -> Params:
        return jax.tree.map(lambda a, d: a.astype(d.dtype), state.average, displacement)


def with_rate(solver: AbstractSolver, learning_rate: float) -> AbstractSolver:
    """The same solver with another learning rate, averaged or not."""
    if isinstance(solver, Averaged):
        return replace(solver, solver=with_rate(solver.solver, learning_rate))
    return replace(solver, learning_rate=learning_rate)
