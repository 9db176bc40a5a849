"""The rates of a configured learner: how they fall, and what holds the mean where no task does."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

import shrinx as sx
from shrinx.experiments.algorithms import LearnerConfig, make_learner
from shrinx.runs.errors import UserError

UPDATES = 10


def trace(loss_fn, **settings) -> list[float]:
    """The mean, from 1, after each update of Reptile with one step of size 0.1: one unit of slope moves it by 0.1."""
    config = LearnerConfig("reptile", num_updates=UPDATES, inner_steps=1, inner_rate=0.1, **settings)
    learner, tasks = make_learner(config), sx.Task(support=jnp.ones((1, 1)))

    def update(state, step):
        state, _ = learner.update(loss_fn, state, tasks, key=jax.random.fold_in(jax.random.key(0), step))
        return state, state.prior.mean

    # Optax itself mixes integers and floats.
    with jax.numpy_dtype_promotion("standard"):
        _, means = jax.lax.scan(update, learner.init(sx.Prior.create(jnp.ones(()))), jnp.arange(UPDATES))
    return [1.0, *means.tolist()]


def slope(params, data):
    return params * jnp.sum(data)


def quadratic(params, data):
    return jnp.sum((params - data) ** 2)


def flat(params, data):
    return 0.0 * slope(params, data)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    {
        "constant": ({}, [1.0] * UPDATES),
        "decay": ({"decay": 0.5}, [1.0] * 6 + [0.8, 0.6, 0.4, 0.2]),
        "fall": ({"fall": 100.0}, [100.0 ** -(n / UPDATES) for n in range(UPDATES)]),
        "both": ({"decay": 1.0, "fall": 100.0}, [100.0 ** -(n / UPDATES) * (1 - n / UPDATES) for n in range(UPDATES)]),
    }.values(),
    ids=["constant", "decay", "fall", "both"],
)
def test_rates(schedule, expected):
    means = trace(slope, mean_optimiser="sgd", mean_rate=1.0, **schedule)
    steps = [before - after for before, after in pairwise(means)]
    assert steps == pytest.approx([0.1 * rate for rate in expected], abs=1e-6)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_weight_decay(optimiser):
    """A module that no loss depends on goes to zero by the factor 1 - rate x decay."""
    means = trace(flat, mean_optimiser=optimiser, mean_rate=0.5, weight_decay=0.1)
    assert means == pytest.approx([0.95**n for n in range(UPDATES + 1)], rel=1e-5)


def test_variances_settle():
    """They move in the first half of the updates and stay in the second, while the mean moves on."""
    config = LearnerConfig("sigma-reptile", num_updates=UPDATES, inner_steps=3, inner_rate=0.1, settle=0.5)
    learner = make_learner(config)
    tasks = sx.Task(support=jnp.array([[1.0], [2.0]]), query=jnp.array([[1.5], [1.0]]))

    def update(state, step):
        state, _ = learner.update(quadratic, state, tasks, key=jax.random.fold_in(jax.random.key(0), step))
        return state, (state.prior.log_variance[0], state.prior.mean)

    with jax.numpy_dtype_promotion("standard"):
        _, (variances, means) = jax.lax.scan(update, learner.init(sx.Prior.create(jnp.ones(()))), jnp.arange(UPDATES))
    moved = [before != after for before, after in pairwise(variances.tolist())]
    assert moved == [True] * 4 + [False] * 5
    assert len(set(means.tolist())) == UPDATES


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_settle_is_a_share(share):
    with pytest.raises(UserError, match="share of the updates"):
        make_learner(LearnerConfig("sigma-maml", settle=share))
