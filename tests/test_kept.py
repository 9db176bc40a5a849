"""What a training hands on."""

import jax
import jax.numpy as jnp
import optax
import pytest
from learners import NAMES, make_learners

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


@pytest.mark.parametrize("name", NAMES)
def test_what_is_handed_on_never_changes_its_shape(name):
    """A checkpoint of any moment is read with the first moment as a pattern."""
    learner = make_learners(max_task_norm=1.0)[name]
    kept = Kept.begin(learner, sx.Prior.create({"a": jnp.zeros(2), "b": jnp.ones(2)}))
    tasks = sx.Task(jnp.ones((3, 2)), jnp.ones((3, 2)))
    state, info = learner.update(lambda p, x: jnp.sum((p["a"] * p["b"] - x) ** 2), kept.state, tasks)
    for keep_best in (False, True):
        after = kept.after(state, info.query_loss, keep_best=keep_best)
        assert jax.tree.structure(after) == jax.tree.structure(kept)
        assert [leaf.shape for leaf in jax.tree.leaves(after)] == [leaf.shape for leaf in jax.tree.leaves(kept)]
