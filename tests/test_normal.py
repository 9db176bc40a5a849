"""The univariate normal model of the paper's appendix A, against its closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from learners import OPTIMISED, relaxed

import shrinx as sx
from shrinx.tasks import normal

NUM_SUPPORT, NUM_QUERY = 6, 4
PHI, VARIANCE = 1.7, 0.8
ADJOINTS = {"unroll": sx.Unroll(), "implicit": sx.Implicit(sx.CG(max_steps=5))}


def tasks_and_means(num_tasks, seed=0, variance=VARIANCE):
    tasks = normal.sample_tasks(
        jax.random.key(seed), num_tasks, mean=PHI, variance=variance, num_support=NUM_SUPPORT, num_query=NUM_QUERY
    )
    return tasks, tasks.support.mean(1), tasks.query.mean(1)


def learner_with(meta_gradient, rate=0.05):
    return sx.Learner(
        meta_gradient,
        sx.ProximalGD(0.12),
        num_steps=20,
        optimiser=relaxed(optax.adam(optax.exponential_decay(rate, 100, 0.5))),
        variance_optimiser=relaxed(optax.adam(optax.exponential_decay(rate, 100, 0.5))),
    )


@pytest.mark.parametrize("variance", [1e-6, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("phi", [-1.0, 0.3])
def test_map_estimate(x64, phi, variance):
    tasks, x, _ = tasks_and_means(20)
    prior = sx.Prior.create(jnp.asarray(phi), variance=variance)
    adapt = jax.vmap(lambda s: sx.adapt(normal.loss_fn, prior, s, sx.ProximalGD(0.12), num_steps=200).params)
    np.testing.assert_allclose(adapt(tasks.support), normal.map_estimate(x, NUM_SUPPORT, phi, variance), atol=1e-10)


@pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
@pytest.mark.parametrize("variance", [1e-3, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("phi", [-1.0, 0.3])
def test_predictive_gradients(x64, phi, variance, adjoint):
    tasks, x, y = tasks_and_means(20)
    learner = sx.Learner(sx.Predictive(adjoint), sx.ProximalGD(0.12), num_steps=300, optimiser=optax.sgd(1.0))
    ours, _ = learner.gradient(normal.loss_fn, sx.Prior.create(jnp.asarray(phi), variance=variance), tasks)
    exact = normal.predictive_gradient(x, y, NUM_SUPPORT, NUM_QUERY, phi, variance)
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.log_variance[0], exact.log_variance, rtol=1e-10, atol=1e-10)


def test_reptile_gradients(x64):
    tasks, x, y = tasks_and_means(20)
    variance, phi = 0.7, 0.3
    learner = sx.Learner(sx.Reptile(ADJOINTS["implicit"]), sx.ProximalGD(0.12), num_steps=300, optimiser=optax.sgd(1.0))
    ours, _ = learner.gradient(normal.loss_fn, sx.Prior.create(jnp.asarray(phi), variance=variance), tasks)
    theta = normal.map_estimate(x, NUM_SUPPORT, phi, variance)
    np.testing.assert_allclose(ours.mean, jnp.mean(phi - theta) / variance, rtol=1e-10)
    exact = normal.predictive_gradient(x, y, NUM_SUPPORT, NUM_QUERY, phi, variance)
    np.testing.assert_allclose(ours.log_variance[0], exact.log_variance, rtol=1e-10)


def test_roots_are_roots(x64):
    """φ̂(σ²), σ̂²(φ) and the joint root, each against the library's own implicit gradient."""
    tasks, x, y = tasks_and_means(200)
    learner = sx.Learner(
        sx.Predictive(ADJOINTS["implicit"]), sx.ProximalGD(0.12), num_steps=300, optimiser=optax.sgd(1.0)
    )

    def gradient_at(phi, variance):
        gradient, _ = learner.gradient(
            normal.loss_fn, sx.Prior.create(jnp.asarray(phi), variance=float(variance)), tasks
        )
        return gradient

    phi = normal.predictive_mean_root(x, y, NUM_SUPPORT, 0.5)
    assert abs(gradient_at(phi, 0.5).mean) < 1e-10
    variance = normal.predictive_variance_root(x, y, NUM_SUPPORT, 1.2)
    assert abs(gradient_at(1.2, variance).log_variance[0]) < 1e-10
    joint = normal.predictive_estimate(x, y, NUM_SUPPORT)
    assert abs(gradient_at(joint.mean, joint.variance).mean) < 1e-10
    assert abs(gradient_at(joint.mean, joint.variance).log_variance[0]) < 1e-10


ESTIMATORS = {
    "sigma-maml": (sx.Predictive(sx.Unroll()), normal.predictive_estimate),
    "sigma-imaml": (sx.Predictive(sx.Implicit(sx.CG(max_steps=2))), normal.predictive_estimate),
    "sigma-reptile": (sx.Reptile(sx.Implicit(sx.CG(max_steps=2))), normal.reptile_estimate),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_recover_the_truth_from_many_tasks(x64, name):
    meta_gradient, estimate = ESTIMATORS[name]
    tasks, x, y = tasks_and_means(20_000)
    learner = learner_with(meta_gradient)
    start = learner.init(sx.Prior.create(jnp.asarray(0.0), variance=3.0))

    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def train(state):
        return jax.lax.scan(lambda state, _: learner.update(normal.loss_fn, state, tasks), state, None, length=500)

    prior = train(start)[0].prior
    # To the root of this sample, and within four standard errors of the truth.
    exact = estimate(x, y, NUM_SUPPORT)
    assert float(prior.mean) == pytest.approx(float(exact.mean), abs=1e-3)
    assert float(prior.variance[0]) == pytest.approx(float(exact.variance), abs=1e-3)
    assert abs(prior.mean - PHI) < 4 * np.sqrt((VARIANCE + 1 / NUM_SUPPORT) / 20_000)
    spread = [float(estimate(*tasks_and_means(20_000, seed)[1:], NUM_SUPPORT).variance) for seed in range(1, 21)]
    assert abs(float(prior.variance[0]) - VARIANCE) < 4 * np.std(spread)


# Joint maximisation: what goes wrong without the predictive likelihood.


def descend(spread, start, num_steps=20_000):
    """Gradient descent on log σ² of the joint loss, whose roots are those in σ²."""

    def step(log_variance, _):
        variance = jnp.exp(log_variance)
        return log_variance - 0.05 * variance * normal.joint_gradient(spread, NUM_SUPPORT, variance), None

    return float(jnp.exp(jax.lax.scan(step, jnp.log(jnp.asarray(start)), None, length=num_steps)[0]))


def test_joint_loss_is_the_joint_density(x64):
    """Against the library's own log density, at the estimates of θ and φ, up to what does not depend on σ²."""
    tasks, x, _ = tasks_and_means(50)
    spread = float(jnp.var(x))

    def by_definition(variance):
        prior = sx.Prior.create(jnp.mean(x), variance=variance)
        theta = normal.map_estimate(x, NUM_SUPPORT, jnp.mean(x), variance)
        density = jax.vmap(prior.log_density)(theta) - jax.vmap(normal.loss_fn)(theta, tasks.support)
        return -float(jnp.mean(density))

    differences = [by_definition(v) - float(normal.joint_loss(spread, NUM_SUPPORT, v)) for v in (0.01, 0.1, 1.0, 10.0)]
    np.testing.assert_allclose(differences, differences[0], rtol=1e-10)
    check_grads(lambda v: normal.joint_loss(spread, NUM_SUPPORT, v), (0.3,), order=1)
    slope = jax.grad(lambda v: normal.joint_loss(spread, NUM_SUPPORT, v))(0.3)
    np.testing.assert_allclose(slope, normal.joint_gradient(spread, NUM_SUPPORT, 0.3), rtol=1e-12)


@pytest.mark.parametrize("ratio", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("start", [1e-2, 1.0, 100.0])
def test_joint_maximisation_collapses_when_the_spread_is_small(x64, ratio, start):
    spread = ratio * 4 / NUM_SUPPORT
    assert normal.joint_roots(spread, NUM_SUPPORT) is None
    grid = jnp.logspace(-6, 3, 200)
    assert (normal.joint_gradient(spread, NUM_SUPPORT, grid) > 0).all()
    assert descend(spread, start) < 1e-6


@pytest.mark.parametrize("ratio", [1.01, 1.5, 10.0])
def test_joint_maximisation_depends_on_the_start_when_the_spread_is_large(x64, ratio):
    spread = ratio * 4 / NUM_SUPPORT
    roots = normal.joint_roots(spread, NUM_SUPPORT)
    assert roots is not None
    for root in roots:
        assert abs(normal.joint_gradient(spread, NUM_SUPPORT, root)) < 1e-10
    assert descend(spread, 0.95 * roots.left) < 1e-6  # From below the left root: to zero.
    assert descend(spread, 1.05 * roots.left) == pytest.approx(roots.right, rel=1e-6)
    assert descend(spread, 100.0) == pytest.approx(roots.right, rel=1e-6)


def test_where_joint_maximisation_fails_the_estimators_do_not():
    """σ² < 3/N: the joint objective has no minimum at all, yet both estimators are close."""
    variance = 2 / NUM_SUPPORT
    _, x, y = tasks_and_means(20_000, variance=variance)
    assert normal.joint_roots(float(jnp.var(x)), NUM_SUPPORT) is None
    for estimate in (normal.predictive_estimate, normal.reptile_estimate):
        assert float(estimate(x, y, NUM_SUPPORT).variance) == pytest.approx(variance, rel=0.1)
