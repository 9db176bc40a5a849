"""What a training hands on."""

import jax
import jax.numpy as jnp
import optax
import pytest

import shrinx as sx
from shrinx.runs.kept import Kept

LOSSES = (3.0, 1.0, float("nan"), 2.0)


def hand_on(keep_best: bool) -> tuple[list[float], Kept]:
    """A training whose mean is 1, 2, 3, 4 after chunks with these losses; the means it would have handed on."""
    learner = sx.reptile(sx.ProximalGD(0.1), num_steps=1, optimiser=optax.sgd(1.0))
    kept, means = Kept.begin(learner, sx.Prior.create(jnp.zeros(()))), []
    for number, loss in enumerate(LOSSES, start=1):
        state = learner.init(sx.Prior.create(jnp.full((), float(number))))
        kept = jax.jit(Kept.after, static_argnames="keep_best")(kept, state, jnp.asarray(loss), keep_best=keep_best)
        means.append(float(kept.prior.mean))
        assert float(kept.state.prior.mean) == number
    return means, kept


def test_the_last_prior_by_default():
    means, _ = hand_on(keep_best=False)
    assert means == [1, 2, 3, 4]


def test_the_best_prior():
    means, kept = hand_on(keep_best=True)
    assert means == [1, 2, 2, 2]
    assert float(kept.loss) == pytest.approx(1.0)
