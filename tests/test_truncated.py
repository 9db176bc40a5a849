"""Backpropagation through the last steps only, and the Hessian of several mini-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shrinx as sx

DIMENSION = 4


def quadratic():
    """A loss with Hessian H, its minimum at the data."""
    root = jax.random.normal(jax.random.key(0), (DIMENSION, DIMENSION))
    hessian = root @ root.T / DIMENSION + jnp.eye(DIMENSION)
    return hessian, lambda theta, x: 0.5 * (theta - x) @ hessian @ (theta - x)


def prior():
    return sx.Prior.create(jnp.zeros(DIMENSION), variance=2.0)


def gradient(adjoint, num_steps=40, solver=None):
    """Of the squared norm of the adapted parameters."""
    _, loss_fn = quadratic()
    data = jnp.arange(1.0, DIMENSION + 1)
    solver = sx.ProximalGD(0.05) if solver is None else solver

    def objective(prior):
        adapted = sx.adapt(loss_fn, prior, data, solver, num_steps=num_steps, adjoint=adjoint)
        return jnp.sum(jnp.square(adapted.params))

    return jax.grad(objective)(prior())


def assert_close(a, b, **tolerance):
    np.testing.assert_allclose(a.mean, b.mean, **tolerance)
    np.testing.assert_allclose(a.log_variance, b.log_variance, **tolerance)


@pytest.fixture(autouse=True)
def precise():
    with jax.enable_x64():
        yield


@pytest.mark.parametrize("solver", [sx.ProximalGD(0.05), sx.ProximalAdam(0.05)], ids=["gd", "adam"])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_as_many_last_steps_as_there_are_change_nothing(solver, checkpoint):
    full = gradient(sx.Unroll(checkpoint), solver=solver)
    assert_close(gradient(sx.Unroll(checkpoint, last=40), solver=solver), full, rtol=1e-12)
    assert_close(gradient(sx.Unroll(checkpoint, last=100), solver=solver), full, rtol=1e-12)


@pytest.mark.parametrize("last", [1, 7, 23])
def test_the_truncated_gradient_is_that_of_the_steps_written_out(last):
    _, loss_fn = quadratic()
    data, start = jnp.arange(1.0, DIMENSION + 1), prior()
    before = sx.adapt(loss_fn, start, data, sx.ProximalGD(0.05), num_steps=40 - last).displacement

    def by_hand(prior):
        displacement = before
        for _ in range(last):
            moved = displacement - 0.05 * jax.grad(loss_fn)(prior.mean + displacement, data)
            displacement = moved / (1 + 0.05 * jnp.exp(-prior.log_variance[0]))
        return jnp.sum(jnp.square(prior.mean + displacement))

    assert_close(gradient(sx.Unroll(last=last)), jax.grad(by_hand)(start), rtol=1e-10)


def test_no_last_steps_are_first_order():
    truncated = gradient(sx.Unroll(last=0))
    np.testing.assert_allclose(truncated.mean, gradient(sx.FirstOrder()).mean, rtol=1e-12)
    np.testing.assert_array_equal(truncated.log_variance, 0.0)


def test_the_truncated_gradient_approaches_the_implicit_one_where_adaptation_has_converged():
    truncated = gradient(sx.Unroll(last=300), num_steps=600)
    assert_close(truncated, gradient(sx.Implicit(sx.CG(max_steps=20)), num_steps=600), rtol=1e-5)


@pytest.mark.parametrize("variances", [sx.Unroll(last=7), sx.FirstOrder()], ids=["truncated", "first order"])
def test_variances_can_have_an_adjoint_of_their_own(variances):
    """The mean's gradient is the implicit one, the variances' the other's, in `adapt` and in a learner alike."""
    mixed, implicit = sx.Implicit(sx.CG(max_steps=20), variance_adjoint=variances), sx.Implicit(sx.CG(max_steps=20))
    np.testing.assert_allclose(gradient(mixed).mean, gradient(implicit).mean, rtol=1e-12)
    np.testing.assert_allclose(gradient(mixed).log_variance, gradient(variances).log_variance, rtol=1e-12)
    assert not np.allclose(gradient(mixed).log_variance, gradient(implicit).log_variance, rtol=0.01)

    _, loss_fn = quadratic()
    tasks = sx.Task(support=jnp.arange(1.0, DIMENSION + 1)[None], query=jnp.zeros((1, DIMENSION)))

    def of_learner(adjoint):
        learner = sx.Learner(sx.Predictive(adjoint), sx.ProximalGD(0.05), num_steps=40, optimiser=optax.sgd(1.0))
        return learner.gradient(loss_fn, prior(), tasks)[0]

    np.testing.assert_allclose(of_learner(mixed).mean, of_learner(implicit).mean, rtol=1e-12)
    np.testing.assert_allclose(of_learner(mixed).log_variance, of_learner(variances).log_variance, rtol=1e-12)


def test_the_hessian_of_several_batches_is_their_mean():
    """Each batch curves one direction; together they curve all of them."""

    def sample(key, data):
        return jax.random.choice(key, data, axis=0)

    def loss_fn(theta, direction):
        return 0.5 * jnp.square(direction @ theta - 1.0)

    data, key = 2.0 * jnp.eye(DIMENSION), jax.random.key(3)

    def implicit(batches):
        def objective(prior):
            adjoint = sx.Implicit(sx.CG(max_steps=50), batches=batches)
            adapted = sx.adapt(
                loss_fn, prior, data, sx.ProximalGD(0.1), num_steps=5, key=key, sample=sample, adjoint=adjoint
            )
            return jnp.sum(adapted.params)

        return jax.grad(objective)(prior()).mean

    drawn = jax.vmap(lambda step: sample(jax.random.fold_in(key, step), data))(5 + jnp.arange(12))
    for batches in (1, 12):
        hessian = jnp.mean(drawn[:batches, :, None] * drawn[:batches, None, :], axis=0)
        exact = jnp.linalg.solve(jnp.eye(DIMENSION) + 2.0 * hessian, jnp.ones(DIMENSION))
        np.testing.assert_allclose(implicit(batches), exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: sx.Unroll(last=-1), "last"), (lambda: sx.Implicit(batches=0), "b")]
)
def test_senseless_numbers_are_refused(make, name):
    with pytest.raises(ValueError, match=f"`{name}.*must be at least"):
        make()
