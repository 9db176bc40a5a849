"""Implicit gradients by the diagonal of the Hessian, where that is the Hessian and mini-batches know it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shrinx as sx

SHARES = np.array([0.5, 0.3, 0.15, 0.05])
"""How often each of four features is the one that is seen: the diagonal of the Hessian."""
NAMES = ("often", "rarely")


def loss_fn(params, batch):
    """Noise of variance 1, so that this is a negative log-likelihood."""
    feature, y = batch
    weights = jnp.concatenate([params[name] for name in NAMES])
    return 0.5 * jnp.mean((y - weights[feature]) ** 2)


def sample(key, data):
    rows = jax.random.choice(key, len(data[0]), (40,))
    return jax.tree.map(lambda leaf: leaf[rows], data)


def make_tasks(count=3, num_points=2000):
    rng = np.random.default_rng(0)

    def draw(truth):
        feature = rng.choice(4, num_points, p=SHARES)
        return feature, truth[feature] + rng.normal(size=num_points)

    parts = [[draw(truth) for _ in range(2)] for truth in rng.normal(size=(count, 4))]
    support, query = (
        jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *part) for part in zip(*parts, strict=True)
    )
    return sx.Task(support=support, query=query)


def make_prior(variance=30.0):
    mean = {name: jnp.zeros(2) for name in NAMES}
    return sx.Prior.create(mean, modules=sx.by_leaf(mean), variance=variance)


def make_learner(adjoint, solver=None, **options):
    options = {"num_steps": 2000, "optimiser": optax.sgd(0.1), "variance_optimiser": optax.sgd(0.1), **options}
    options.setdefault("sample", sample)
    solver = sx.Averaged(sx.ProximalAdam(0.01), window=500) if solver is None else solver
    return sx.sigma_reptile(solver, variance_adjoint=adjoint, **options)


def test_it_is_the_implicit_gradient_and_not_that_of_first_order(x64):
    tasks, key = make_tasks(), jax.random.key(1)
    adjoints = (sx.Implicit(sx.CG(max_steps=20), batches=50), sx.Implicit(sx.Diagonal(), batches=50), sx.FirstOrder())
    exact, ours, first = (
        make_learner(adjoint).gradient(loss_fn, make_prior(), tasks, key=key)[0].log_variance for adjoint in adjoints
    )
    np.testing.assert_allclose(ours, exact, rtol=0.15)
    assert np.all(np.abs(first) > 2.5 * np.abs(exact))


def test_damping_and_the_factor(x64):
    """Whatever the squares are multiplied by, they are brought to the trace of the Hessian."""
    prior, hessian = make_prior(2.0), {"often": jnp.array([3.0, 1.0]), "rarely": jnp.array([0.5, 0.1])}
    slope = {"often": jnp.array([1.0, -1.0]), "rarely": jnp.array([2.0, 0.5])}
    squares = jax.tree.map(lambda h: 7 * h, hessian)

    def product(vector):
        return jax.tree.map(jnp.multiply, hessian, vector)

    for damping in (0.0, 0.5):
        solution, stats = sx.Diagonal(damping).solve(product, slope, prior, squares=squares, key=jax.random.key(0))
        expected = jax.tree.map(lambda g, h, d=damping: g / (1 + 2 * (h + d)), slope, hessian)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), solution, expected)
        assert (int(stats.num_steps), bool(stats.negative_curvature)) == (1, False)


def test_without_curvature_upwards_it_is_of_first_order(x64):
    slope = {name: jnp.ones(2) for name in NAMES}

    def product(vector):
        return jax.tree.map(jnp.negative, vector)

    solution, stats = sx.Diagonal().solve(product, slope, make_prior(), squares=slope, key=jax.random.key(0))
    assert stats.negative_curvature
    jax.tree.map(np.testing.assert_array_equal, solution, slope)


@pytest.mark.parametrize("trainable", [None, ("rarely",)])
def test_adapt_is_differentiated_alike(x64, trainable):
    task = jax.tree.map(lambda leaf: leaf[0], make_tasks())
    prior, key, solver = make_prior(), jax.random.key(3), sx.ProximalAdam(0.01)
    adjoint = sx.Implicit(sx.Diagonal(), batches=4)
    options = {"num_steps": 100, "sample": sample, "trainable": trainable}

    def score(prior):
        adapted = sx.adapt(loss_fn, prior, task.support, solver, key=key, adjoint=adjoint, **options)
        assert adapted.progress is None
        return loss_fn(adapted.params, task.query)

    learner = sx.Learner(
        sx.Predictive(adjoint), solver, optimiser=optax.sgd(0.1), variance_optimiser=optax.sgd(0.1), **options
    )
    batch = jax.tree.map(lambda leaf: leaf[None], task)
    ours, info = learner.gradient(loss_fn, prior, batch, key=key)
    assert info.progress is None
    # The key of a task is made of the learner's.
    key = jax.random.split(jax.random.split(key, 1)[0])[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), jax.grad(score)(prior), ours)
    if trainable:
        assert ours.log_variance[0] == 0 != ours.log_variance[1]


def test_tasks_that_come_back_keep_their_squares(x64):
    learner = make_learner(sx.Implicit(sx.Diagonal(), batches=4), num_steps=5)
    state, tasks = learner.init(make_prior()), make_tasks()
    progress = learner.progress(state.prior, 3)
    for step in range(3):
        tasks = replace(tasks, progress=progress)
        state, info = learner.update(loss_fn, state, tasks, key=jax.random.key(step))
        progress = info.progress
    assert progress.solver.solver.num_steps.tolist() == [15] * 3
    assert np.all(np.isfinite(state.prior.log_variance))


def test_squared_gradients_are_those_of_the_steps():
    solver, prior = sx.Averaged(sx.ProximalAdam(0.1)), sx.Prior.create(jnp.zeros(1))
    state = solver.init(prior)
    assert solver.squared_gradients(state).tolist() == [0.0]
    _, state, _ = solver.step(lambda delta: 3 * jnp.sum(delta), jnp.zeros(1), state, prior)
    np.testing.assert_allclose(solver.squared_gradients(state), [9.0], rtol=1e-4)
    assert sx.ProximalGD(0.1).squared_gradients(None) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"sample": None}, "it needs a `sample`"), ({"solver": sx.ProximalGD(0.1)}, "`ProximalAdam`, not `ProximalGD`")],
)
def test_what_it_cannot_do_without(options, message):
    learner = make_learner(sx.Implicit(sx.Diagonal()), num_steps=2, **options)
    with pytest.raises(ValueError, match=message):
        learner.update(loss_fn, learner.init(make_prior()), make_tasks(), key=jax.random.key(0))
