"""The two synthetic problems of appendix C."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from shrinx.tasks import hierarchical

MODELS = {"linear": hierarchical.linear(), "swirl": hierarchical.swirl()}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


def as_tree(model, vector):
    return {name: vector[index] for index, name in enumerate(model.names)}


def test_the_models_are_those_of_the_paper():
    linear, swirl = MODELS["linear"], MODELS["swirl"]
    assert (len(linear.spread), len(linear.noise)) == (8, 9)
    assert (len(swirl.spread), len(swirl.noise)) == (10, 10)
    theta = jnp.arange(8.0)
    np.testing.assert_allclose(linear.transform(theta), np.append(theta, 28 / np.sqrt(8)), rtol=1e-6)


def test_a_pair_is_rotated_in_proportion_to_its_norm():
    with jax.enable_x64():
        # At distance 5 the angle is π, at 2.5 a quarter turn.
        rotated = hierarchical.rotate_pairs(jnp.asarray([3.0, 4.0, 2.5, 0.0]))
        np.testing.assert_allclose(rotated, [-3.0, -4.0, 0.0, 2.5], atol=1e-12)


def test_the_swirl_keeps_volume_and_is_undone_by_turning_back():
    with jax.enable_x64():
        theta = 2.0 + 4.0 * jax.random.normal(jax.random.key(0), (10,))
        jacobian = jax.jacobian(hierarchical.rotate_pairs)(theta)
        np.testing.assert_allclose(np.linalg.det(jacobian), 1.0, rtol=1e-10)
        back = hierarchical.rotate_pairs(hierarchical.rotate_pairs(theta), -hierarchical.ANGULAR_VELOCITY)
        np.testing.assert_allclose(back, theta, atol=1e-12)


def test_gradients_agree_with_finite_differences(model):
    with jax.enable_x64():
        tasks = model.sample_tasks(jax.random.key(1), 1, num_support=3, num_query=1)
        batch = jax.tree.map(lambda x: x[0], tasks.support)
        theta = as_tree(model, batch["theta"] + 0.3)
        loss = jax.jit(lambda theta: model.loss(theta, batch))
        check_grads(loss, (theta,), order=2, rtol=1e-6)


def test_the_gradient_at_the_origin_is_finite():
    gradient = jax.jacobian(hierarchical.rotate_pairs)(jnp.zeros(2))
    np.testing.assert_array_equal(gradient, np.eye(2))


def test_tasks_have_the_moments_of_the_model(model):
    tasks = model.sample_tasks(jax.random.key(2), 20_000, num_support=1, num_query=1)
    theta, x = np.asarray(tasks.support["theta"]), np.asarray(tasks.support["x"][:, 0])
    np.testing.assert_allclose(theta.mean(axis=0), model.centre, atol=0.25)
    np.testing.assert_allclose(theta.std(axis=0), model.spread, rtol=0.02)
    noise = x - np.asarray(jax.vmap(model.transform)(tasks.support["theta"]))
    np.testing.assert_allclose(noise.std(axis=0), model.noise, rtol=0.02)
    np.testing.assert_array_equal(tasks.query["theta"], tasks.support["theta"])
    assert not np.array_equal(tasks.query["x"], tasks.support["x"])


def test_the_loss_is_the_negative_log_density(model):
    tasks = model.sample_tasks(jax.random.key(3), 1, num_support=4, num_query=1)
    batch = jax.tree.map(lambda x: x[0], tasks.support)
    noise = jnp.asarray(model.noise)
    density = jax.scipy.stats.norm.logpdf(batch["x"], model.transform(batch["theta"])[None], noise[None]).sum()
    at_zero = jax.scipy.stats.norm.logpdf(jnp.zeros_like(noise), 0.0, noise).sum() * 4
    np.testing.assert_allclose(model.loss(as_tree(model, batch["theta"]), batch), at_zero - density, rtol=1e-4)
    per_observation = model.loss_per_observation(as_tree(model, batch["theta"]), batch)
    np.testing.assert_allclose(per_observation, (at_zero - density) / 4, rtol=1e-4)
