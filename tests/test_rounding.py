"""Meta-training of parameters of 16 bits: what an update is too small to change is not lost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shrinx as sx
from shrinx._rounding import apply_rounded, nothing_cut

pytestmark = pytest.mark.usefixtures("relaxed")

SHORT = pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
TRUE = jnp.array([0.3, -0.2, 0.5])


def loss_fn(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"].astype(jnp.float32) - y) ** 2)


@pytest.fixture(scope="module")
def tasks():
    x = jax.random.normal(jax.random.key(0), (4, 10, 3))
    y = x @ TRUE
    return sx.Task(support=(x[:, :5], y[:, :5]), query=(x[:, 5:], y[:, 5:]))


def learned(learner, dtype, tasks, num_updates=200, loss_fn=loss_fn, **more):
    state = learner.init(sx.Prior.create({"w": jnp.ones(3, dtype), **more}))
    for _ in range(num_updates):
        state, info = learner.update(loss_fn, state, tasks)
    return state.prior, info


@SHORT
def test_the_mean_learns_by_steps_below_its_precision(dtype, tasks):
    """The spacing of bfloat16 below 1 is 0.004, a step is 0.001."""
    adam = optax.adam(1e-3)
    learner = sx.sigma_maml(sx.ProximalGD(0.1), num_steps=3, optimiser=adam, variance_optimiser=adam)
    (short, info), (full, expected) = (learned(learner, kind, tasks) for kind in (dtype, jnp.float32))
    assert short.mean["w"].dtype == dtype
    np.testing.assert_allclose(short.mean["w"].astype(jnp.float32), full.mean["w"], atol=float(jnp.finfo(dtype).eps))
    np.testing.assert_allclose(info.query_loss, expected.query_loss, rtol=0.05)
    assert np.all(np.abs(full.mean["w"] - 1) > 0.1)


@SHORT
def test_rates_learn_in_32_bits(dtype, tasks):
    learner = sx.meta_sgd(
        sx.ProximalGD(0.1), num_steps=3, optimiser=optax.sgd(0.0), rate_optimiser=optax.adam(1e-3), rates="parameter"
    )
    (short, _), (full, _) = (learned(learner, kind, tasks) for kind in (dtype, jnp.float32))
    assert short.rates["w"].dtype == jnp.float32
    np.testing.assert_allclose(short.rates["w"], full.rates["w"], rtol=2e-3)
    assert np.all(full.rates["w"] > 1.1)


@SHORT
def test_parameters_that_nothing_depends_on_stay(dtype, tasks):
    """Adam's ε is zero in float16: 0 / 0."""

    def idle(params, batch):
        return loss_fn(params, batch) + 0 * jnp.sum(params["u"].astype(jnp.float32))

    learner = sx.fomaml(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.adam(1e-2))
    prior, _ = learned(learner, dtype, tasks, 2, idle, u=jnp.ones(2, dtype))
    np.testing.assert_array_equal(prior.mean["u"].astype(jnp.float32), 1)


@SHORT
def test_infinities_such_as_a_mask_has_stay(dtype, tasks):
    mask = jnp.array([0, -jnp.inf], dtype)

    def masked(params, batch):
        return loss_fn(params, batch) + 0 * jnp.sum(jnp.where(jnp.isinf(params["mask"]), 1.0, 0.0))

    learner = sx.reptile(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1))
    prior, _ = learned(learner, dtype, tasks, 3, masked, mask=mask)
    np.testing.assert_array_equal(prior.mean["mask"].astype(jnp.float32), mask.astype(jnp.float32))


@SHORT
def test_rates_that_are_there_already_learn_too(dtype, tasks):
    learner = sx.meta_sgd(
        sx.ProximalGD(0.1), num_steps=3, optimiser=optax.sgd(0.0), rate_optimiser=optax.adam(1e-3), rates="parameter"
    )
    prior = sx.Prior.create({"w": jnp.ones(3, dtype)})
    given = sx.Prior(prior.mean, prior.log_variance, prior.modules, rates={"w": jnp.ones(3, dtype)})
    states = [learner.init(start) for start in (prior, given)]
    for _ in range(3):
        states = [learner.update(loss_fn, state, tasks)[0] for state in states]
    new, old = (state.prior.rates["w"] for state in states)
    assert new.dtype == old.dtype == jnp.float32
    np.testing.assert_array_equal(new, old)


def test_rounding_is_not_a_cast_there_and_back():
    """Which XLA may leave out, and does on GPUs: nothing would ever be cut off."""
    prior = sx.Prior.create({"w": jnp.ones(3, jnp.bfloat16)})
    cut, sgd = nothing_cut(prior), optax.sgd(1e-4)
    step = jax.jit(lambda gradient: apply_rounded(sgd, gradient, sgd.init(cut), prior.mean, cut))
    assert "reduce_precision" in step.lower(prior.mean).as_text()


def test_parameters_of_32_bits_carry_nothing_more(tasks):
    learner = sx.reptile(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1))
    state = learner.init(sx.Prior.create({"w": jnp.ones(3)}))
    assert jax.tree.leaves(state.opt_state.cut) == []
