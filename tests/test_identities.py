"""Published methods are special cases, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import conv_net, conv_net_loss, image_tasks, quadratic_loss, random_quadratic, relative_error

import shrinx as sx

MEAN, VARIANCE = optax.sgd(0.1), optax.sgd(0.1)


@pytest.fixture(scope="module")
def network():
    return conv_net(jax.random.key(0), blocks=1), image_tasks(jax.random.key(1), 3)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def hand_written_maml(params, tasks, rate, num_steps):
    """MAML in plain JAX, sharing no code with the library."""

    def query_loss(params, support, query):
        theta = params
        for _ in range(num_steps):
            gradient = jax.grad(conv_net_loss)(theta, support)
            theta = jax.tree.map(lambda t, g: t - rate * g, theta, gradient)
        return conv_net_loss(theta, query)

    losses = jax.vmap(query_loss, in_axes=(None, 0, 0))
    return jax.jit(jax.grad(lambda p: jnp.mean(losses(p, tasks.support, tasks.query))))(params)


def test_sigma_maml_with_infinite_variances_is_maml(network):
    params, tasks = network
    prior = sx.Prior.create(params, variance=jnp.inf)
    solver = sx.ProximalGD(0.1)
    ours, _ = sx.sigma_maml(solver, num_steps=3, optimiser=MEAN, variance_optimiser=VARIANCE).gradient(
        conv_net_loss, prior, tasks
    )
    # Whatever variance the prior comes with, `maml` has none.
    maml, _ = sx.maml(solver, num_steps=3, optimiser=MEAN).gradient(conv_net_loss, sx.Prior.create(params), tasks)
    assert relative_error(flat(ours), flat(maml)) < 1e-6  # Not to the bit: the compiler knows more of the second.
    assert relative_error(flat(ours.mean), flat(hand_written_maml(params, tasks, 0.1, 3))) < 1e-4
    np.testing.assert_array_equal(ours.log_variance, 0.0)


@pytest.mark.parametrize("rates", ["parameter", "module"])
def test_meta_sgd_with_one_rate_is_maml(network, rates):
    params, tasks = network
    prior = sx.Prior.create(params)
    maml, _ = sx.maml(sx.ProximalGD(0.1), num_steps=3, optimiser=MEAN).gradient(conv_net_loss, prior, tasks)
    learner = sx.meta_sgd(sx.ProximalGD(0.1), num_steps=3, optimiser=MEAN, rate_optimiser=VARIANCE, rates=rates)
    ours, _ = learner.gradient(conv_net_loss, prior, tasks)
    assert relative_error(flat(ours.mean), flat(maml.mean)) < 1e-6


def test_meta_sgd_rates_have_the_right_gradient(x64):
    """The gradient for a common rate is the derivative of MAML's loss with respect to its step size."""
    problem = random_quadratic(0, dimension=8)
    prior, task = problem.prior("float64"), problem.task("float64", batch=True)

    def maml_loss(rate):
        learner = sx.maml(sx.ProximalGD(rate), num_steps=4, optimiser=MEAN)
        return float(learner.gradient(quadratic_loss, prior, task)[1].query_loss)

    slope = (maml_loss(0.3 * (1 + 1e-6)) - maml_loss(0.3 * (1 - 1e-6))) / 2e-6
    for rates in ("parameter", "module"):
        learner = sx.meta_sgd(sx.ProximalGD(0.3), num_steps=4, optimiser=MEAN, rate_optimiser=VARIANCE, rates=rates)
        ours, _ = learner.gradient(quadratic_loss, prior, task)
        assert flat(ours.rates).sum() == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("damping", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("strength", [0.025, 2.0, 50.0])
def test_imaml_is_its_damped_formula(x64, strength, damping):
    """((1+d)I + H/λ)^-1 g, with our damping d λ."""
    base = random_quadratic(0, dimension=15)
    problem = type(base)(**{**base.__dict__, "deviations": np.full(len(base.sizes), strength**-0.5)})
    learner = sx.imaml(
        sx.ProximalGD(1.0),
        num_steps=3000,
        optimiser=MEAN,
        linear_solver=sx.CG(max_steps=200, damping=damping * strength),
        regularisation=strength,
    )
    ours, _ = learner.gradient(quadratic_loss, problem.prior("float64"), problem.task("float64", batch=True))
    system = (1 + damping) * np.eye(15) + problem.support_matrix / strength
    exact = np.linalg.solve(system, problem.query_gradient(problem.map_estimate()))
    assert relative_error(problem.join(ours.mean), exact) < 1e-8


@pytest.mark.parametrize("system", ["whitened", "preconditioned"])
@pytest.mark.parametrize("variance", [0.05, 1.0, 200.0])
def test_imaml_with_one_cg_step_has_the_direction_of_fomaml(network, variance, system):
    params, tasks = network
    task = jax.tree.map(lambda x: x[:1], tasks)
    prior = sx.Prior.create(params, variance=variance)
    cg = sx.CG(max_steps=1, system=system)
    one_step, _ = sx.imaml(sx.ProximalGD(0.05), num_steps=10, optimiser=MEAN, linear_solver=cg).gradient(
        conv_net_loss, prior, task
    )
    first_order = sx.Learner(sx.Predictive(sx.FirstOrder()), sx.ProximalGD(0.05), num_steps=10, optimiser=MEAN)
    direction = flat(first_order.gradient(conv_net_loss, prior, task)[0].mean)
    ours = flat(one_step.mean)
    cosine = ours @ direction / np.linalg.norm(ours) / np.linalg.norm(direction)
    assert cosine == pytest.approx(1.0, abs=1e-6)


def test_fomaml_is_the_query_gradient_at_the_adapted_parameters(network):
    params, tasks = network
    ours, _ = sx.fomaml(sx.ProximalGD(0.1), num_steps=3, optimiser=MEAN).gradient(
        conv_net_loss, sx.Prior.create(params), tasks
    )
    prior = sx.Prior.create(params, variance=jnp.inf)

    def one(support, query):
        adapted = sx.adapt(conv_net_loss, prior, support, sx.ProximalGD(0.1), num_steps=3)
        return jax.grad(conv_net_loss)(adapted.params, query)

    expected = jax.tree.map(lambda g: g.mean(0), jax.jit(jax.vmap(one))(tasks.support, tasks.query))
    assert relative_error(flat(ours.mean), flat(expected)) < 1e-5


@pytest.mark.parametrize("variance", [0.01, 1.0, 1e4])
def test_sigma_reptile_with_equal_variances_is_reptile(network, variance):
    """An SGD rate proportional to σ² turns one into the other; without a prior inside it is the published Reptile."""
    params, tasks = network
    prior = sx.Prior.create(params, variance=variance)
    solver, rate = sx.ProximalGD(0.1), 0.3
    sigma = sx.sigma_reptile(solver, num_steps=5, optimiser=optax.sgd(rate * variance), variance_optimiser=VARIANCE)
    plain = sx.reptile(solver, num_steps=5, optimiser=optax.sgd(rate), variance=None)
    ours, _ = sigma.update(conv_net_loss, sigma.init(prior), tasks)
    theirs, _ = plain.update(conv_net_loss, plain.init(prior), tasks)
    moved = [flat(state.prior.mean) - flat(params) for state in (ours, theirs)]
    assert relative_error(moved[0], moved[1]) < 1e-4
    if variance == 1e4:
        published = sx.reptile(solver, num_steps=5, optimiser=optax.sgd(rate))
        state, _ = published.update(conv_net_loss, published.init(prior), tasks)
        assert relative_error(flat(state.prior.mean) - flat(params), moved[1]) < 1e-3


def test_reptile_needs_no_query_set(network):
    params, tasks = network
    solver = sx.ProximalAdam(0.01, eps=1e-3)  # Biases before batch norm have gradients of rounding alone.
    learner = sx.reptile(solver, num_steps=5, optimiser=optax.sgd(1.0))
    state, info = learner.update(conv_net_loss, learner.init(sx.Prior.create(params)), sx.Task(tasks.support))
    # With a rate of 1 the new mean is the mean of the adapted parameters.
    prior = sx.Prior.create(params, variance=jnp.inf)
    adapt = jax.jit(jax.vmap(lambda s: sx.adapt(conv_net_loss, prior, s, solver, num_steps=5).params))
    adapted = adapt(tasks.support)
    assert relative_error(flat(state.prior.mean), flat(jax.tree.map(lambda x: x.mean(0), adapted))) < 1e-5
    assert info.num_failed == 0


def test_sigma_reptile_in_a_frozen_module_follows_the_support_gradient(x64):
    """The limit of (φ-θ̂)/σ² as σ² -> 0 is the gradient of the support loss at θ̂."""
    base = random_quadratic(1, dimension=12, deviations=(0.1, 3.0))
    means = []
    for tiny in (1e-9, 0.0):
        deviations = np.where(np.arange(len(base.sizes)) == 0, tiny, base.deviations)
        problem = type(base)(**{**base.__dict__, "deviations": deviations})
        learner = sx.sigma_reptile(
            sx.ProximalGD(1.0), num_steps=3000, optimiser=MEAN, variance_optimiser=VARIANCE, linear_solver=sx.CG(100)
        )
        gradient, _ = learner.gradient(quadratic_loss, problem.prior("float64"), problem.task("float64", batch=True))
        means.append(problem.join(gradient.mean))
    expected = problem.support_matrix @ (problem.map_estimate() - problem.support_centre)
    assert relative_error(means[1], expected) < 1e-8
    assert relative_error(means[0], means[1]) < 1e-8
