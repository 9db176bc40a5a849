"""A small convolutional network with batch norm: what the theory promises on something real."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import OPTIMISED
from problems import conv_net, conv_net_loss, image_tasks, relative_error

import shrinx as sx

MEAN, VARIANCE = optax.sgd(0.1), optax.sgd(0.1)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def double(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


@pytest.mark.slow
def test_implicit_gradient_equals_a_long_unrolled_one(x64):
    """Adapted to convergence, both derivatives of the query loss agree, module by module."""
    params = double(conv_net(jax.random.key(0)))
    tasks = double(image_tasks(jax.random.key(1), 2))
    names = sx.by_layer(params).names
    variance = {name: 0.05 if name.startswith("bn") else 0.02 for name in names} | {"output": 0.5}
    prior = sx.Prior.create(params, variance=variance)

    def gradient(adjoint):
        learner = sx.Learner(sx.Predictive(adjoint), sx.ProximalGD(0.2), num_steps=1500, optimiser=MEAN)
        of_tasks = functools.partial(learner.gradient, conv_net_loss)
        return jax.jit(of_tasks, compiler_options=OPTIMISED)(prior, tasks)

    implicit, info = gradient(sx.Implicit(sx.CG(max_steps=400)))
    unrolled, _ = gradient(sx.Unroll())
    assert (info.residual < 1e-8).all()
    assert not info.linear.negative_curvature.any()
    assert relative_error(flat(implicit.mean), flat(unrolled.mean)) < 1e-6
    np.testing.assert_allclose(implicit.log_variance, unrolled.log_variance, rtol=1e-5, atol=1e-9)


def test_an_indefinite_hessian_is_handled_and_reported():
    """Far from a minimum and with a weak prior the Hessian is indefinite: CG stops, says so, and stays finite."""
    params = conv_net(jax.random.key(0))
    tasks = image_tasks(jax.random.key(1), 4)
    prior = sx.Prior.create(params, variance=1e4)
    cg = sx.CG(max_steps=30)
    learner = sx.imaml(sx.ProximalGD(1e-3), num_steps=1, optimiser=MEAN, linear_solver=cg)
    gradient, info = learner.gradient(conv_net_loss, prior, tasks)
    assert info.linear.negative_curvature.any()
    assert (info.linear.num_steps < 30)[info.linear.negative_curvature].all()
    assert np.isfinite(flat(gradient.mean)).all()
    assert info.healthy.all()
    damped = sx.imaml(sx.ProximalGD(1e-3), num_steps=1, optimiser=MEAN, linear_solver=sx.CG(max_steps=30, damping=10.0))
    _, info = damped.gradient(conv_net_loss, prior, tasks)
    assert not info.linear.negative_curvature.any()


def test_negative_curvature_at_the_first_step_leaves_the_hessian_out():
    prior = sx.Prior.create(jnp.zeros(3), variance=2.0)
    gradient = jnp.array([1.0, -2.0, 0.5])
    for damping in (0.0, 0.1):
        solution, stats = sx.CG(max_steps=5, damping=damping).solve(lambda v: -10 * v, gradient, prior)
        assert stats.negative_curvature
        assert stats.num_steps == 0
        np.testing.assert_allclose(solution, gradient / (1 + 2.0 * damping), rtol=1e-6)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", ["sigma_maml", "sigma_imaml", "sigma_reptile"])
def test_low_precision_activations(make, compute):
    """Parameters stay in float32, activations may be bfloat16, and learning still moves where float32 does."""
    prior = sx.Prior.create(conv_net(jax.random.key(0)), variance=0.1)
    tasks = image_tasks(jax.random.key(1), 3)
    loss_fn = functools.partial(conv_net_loss, compute_dtype=jnp.dtype(compute))
    learner = getattr(sx, make)(sx.ProximalGD(0.1), num_steps=5, optimiser=MEAN, variance_optimiser=VARIANCE)
    gradient, info = learner.gradient(loss_fn, prior, tasks)
    reference, _ = learner.gradient(conv_net_loss, prior, tasks)
    assert info.num_failed == 0
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(gradient))
    a, b = flat(gradient.mean), flat(reference.mean)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.95
