"""A training and what it would hand on: the prior it has now, or the best it ever had."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._learner import Learner, LearnerState
from .._prior import Prior
from .._tree import tree_where


class Kept(eqx.Module):
    """Where a training is, and its `prior` for whoever comes after it.

    Long training can lose what it had found. The query loss of a chunk of updates is measured on tasks before they are
    learned from, so that where tasks never run out the least of them tells the best prior, at no cost.
    """

    state: LearnerState
    prior: Prior
    loss: Float[Array, ""]
    """The mean query loss of the chunk that `prior` is the end of."""

    @classmethod
    def begin(cls, learner: Learner, prior: Prior) -> "Kept":
        state = learner.init(prior)
        # Not the prior as it was given: what the learner imposes and adds (rates of Meta-SGD) is a part of it.
        # The loss has a type of its own: a weak one would not outlive the first chunk, and all be compiled anew.
        return cls(state, state.prior, jnp.asarray(jnp.inf, dtype=jnp.result_type(float)))

    def after(self, state: LearnerState, loss: Float[Array, ""], *, keep_best: bool) -> "Kept":
        """After another chunk with this mean query loss, which is NaN if no task was any use."""
        if not keep_best:
            return Kept(state, state.prior, loss)
        better = loss <= self.loss
        return Kept(state, tree_where(better, state.prior, self.prior), jnp.where(better, loss, self.loss))
