"""An inner solver that finds its own step size."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._mixed import value_and_gradient
from ._prior import Prior, module_energies
from ._solver import AbstractSolver, ObjectiveFn, StepInfo, check_learning_rate
from ._tree import tree_where
from ._types import Params


class ProximalBacktracking(AbstractSolver[Float[Array, ""]]):
    r"""Proximal gradient descent whose step size is of the task's own making.

    A step that would raise the task's loss plus the prior's energy is not taken, and the next is `cut` times as long;
    otherwise the next is `growth` times as long. So adaptation cannot diverge, whatever the curvature it meets. A step
    that goes nowhere is no reason for one longer than the first.
    Implicit gradients and Reptile's see where adaptation ends, not how it came there, and in long meta-training a mean
    drifts to where a fixed step size no longer works; this solver goes with it.

    For a loss that is a function of the parameters alone: mini-batches (`sample`) or dropout make a step look worse
    or better than it is.

    **Arguments:**

    - `learning_rate`: the first step size.
    - `growth`, `cut`: by what it is multiplied after a step that is taken and after one that is not.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=1.0)
    >>> loss_fn = lambda theta, x: 50 * jnp.sum((theta - x) ** 2)
    >>> sx.adapt(loss_fn, prior, jnp.array([2.02]), sx.ProximalBacktracking(10.0), num_steps=50).params.round(3)
    Array([2.], dtype=float32)
    """

    learning_rate: Any
    growth: float = 1.2
    cut: float = 0.5

    def __check_init__(self):
        check_learning_rate(self.learning_rate)
        if callable(self.learning_rate):
            raise TypeError("`learning_rate` must be one number: the solver makes its own schedule.")
        if not self.cut < 1 <= self.growth or self.cut <= 0:
            raise ValueError(f"0 < `cut` < 1 <= `growth` is needed, got cut={self.cut} and growth={self.growth}.")

    def init(self, prior: Prior) -> Float[Array, ""]:
        return jnp.asarray(self.learning_rate, prior.log_variance.dtype)

    def resume(self, state: Float[Array, ""], prior: Prior) -> Float[Array, ""]:
        # Where adaptation has converged, rounding decides whether steps grow or shrink, without end.
        del state
        return self.init(prior)

    def step(
        self, loss_fn: ObjectiveFn, displacement: Params, state: Float[Array, ""], prior: Prior
    ) -> tuple[Params, Float[Array, ""], StepInfo]:
        loss, gradient = value_and_gradient(loss_fn, displacement)
        steps = prior.steps(state)
        moved = jax.tree.map(lambda d, g, a: d - a.astype(d.dtype) * g, displacement, gradient, steps)
        proposal = prior.shrink(moved, steps)
        # Whether a step is taken is not differentiated, no more than a step size is.
        fixed, here, there = jax.lax.stop_gradient((prior, displacement, proposal))
        slope = jax.lax.stop_gradient(gradient)

        def objective(loss: Array, displacement: Params) -> Array:
            energy = jnp.sum(module_energies(fixed, displacement)) + _unseen(fixed, displacement, slope)
            return loss + energy.astype(loss.dtype)

        better = jax.lax.stop_gradient(objective(loss_fn(there), there) <= objective(loss, here))
        rate = jnp.where(better, self.growth, self.cut).astype(state.dtype) * state
        # At a gradient of 0 steps would grow without end. They go nowhere too where they have become too short.
        went = jax.tree.reduce(jnp.logical_or, jax.tree.map(lambda a, b: jnp.any(a != b), here, there))
        rate = jnp.where(went, rate, jnp.minimum(rate, jnp.maximum(state, self.init(prior))))
        info = StepInfo.of(prior, displacement, loss, gradient)
        return tree_where(better, proposal, displacement), rate, info


def _unseen(prior: Prior, displacement: Params, gradient: Params) -> Array:
    """What the loss would change, to first order, by the part of a displacement that parameters in 16 bits round away.

    A small variance keeps all of it there: the energy would rise with every step, and the loss would never fall.
    """

    def of_leaf(phi: Array, theta: Array, delta: Array, slope: Array) -> Array:
        if delta.dtype == phi.dtype:
            return jnp.zeros((), prior.log_variance.dtype)
        lost = delta - (theta.astype(delta.dtype) - phi.astype(delta.dtype))
        # Not the product alone: a frozen module may be infinite, and so may its gradient.
        seen = (lost == 0) | ~jnp.isfinite(phi)
        return jnp.sum(jnp.where(seen, 0, lost * slope)).astype(prior.log_variance.dtype)

    losses = jax.tree.map(of_leaf, prior.mean, prior.at(displacement), displacement, gradient)
    return jnp.asarray(sum(jax.tree.leaves(losses)))
