"""Memory against horizon, read off the compiled programs."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.flatten_util import ravel_pytree
from problems import conv_net, conv_net_loss, image_tasks

import shrinx as sx


def bytes_of(adjoint, num_steps, meta_gradient=sx.Predictive, **options):
    learner = sx.Learner(
        meta_gradient(adjoint), sx.ProximalGD(0.1), num_steps=num_steps, optimiser=optax.sgd(0.1), **options
    )
    prior = sx.Prior.create(conv_net(jax.random.key(0)), variance=0.1)
    tasks = image_tasks(jax.random.key(1), 2)
    compiled = jax.jit(lambda p, t, k: learner.gradient(conv_net_loss, p, t, key=k)[0])
    compiled = compiled.lower(prior, tasks, jax.random.key(2)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("meta_gradient", [sx.Predictive, sx.Reptile])
def test_implicit_gradients_are_flat_in_the_horizon(meta_gradient, record_property):
    short, long = (bytes_of(sx.Implicit(), n, meta_gradient) for n in (100, 10_000))
    record_property("bytes at 100 and 10,000 steps", (short, long))
    # Each task and step has one loss and one gradient norm to report; 2 tasks x 2 numbers x 4 bytes, kept twice.
    assert long - short < 10_000 * 40


def test_a_hessian_of_many_batches_takes_the_memory_of_a_few(record_property):
    """But for the batches themselves, twice: each is the whole task here."""
    few, many = (bytes_of(sx.Implicit(batches=count), 5, sample=lambda key, data: data) for count in (2, 32))
    record_property("bytes with 2 and 32 batches", (few, many))
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(image_tasks(jax.random.key(1), 2).support))
    assert many - few < 2.5 * 30 * own


def test_checkpointing_needs_a_tenth_of_the_memory_at_1000_steps(record_property):
    stored, checkpointed = (bytes_of(sx.Unroll(checkpoint), 1000) for checkpoint in (False, True))
    record_property("bytes without and with checkpoints", (stored, checkpointed))
    assert checkpointed < 0.1 * stored


def test_checkpointed_memory_grows_with_the_square_root():
    four_times_as_long = bytes_of(sx.Unroll(), 1600) / bytes_of(sx.Unroll(), 400)
    assert four_times_as_long < 2.5


@pytest.mark.parametrize("num_steps", [1, 7, 97, 100])
def test_checkpointing_changes_no_gradient(num_steps):
    """Including horizons without a suitable divisor, whose last segment is shorter."""
    prior = sx.Prior.create(conv_net(jax.random.key(0)), variance=0.1)
    tasks = image_tasks(jax.random.key(1), 2)

    def gradient(checkpoint):
        learner = sx.maml(sx.ProximalGD(0.01), num_steps=num_steps, optimiser=optax.sgd(0.1), checkpoint=checkpoint)
        return learner.gradient(conv_net_loss, prior, tasks)

    (stored, stored_info), (checkpointed, info) = gradient(False), gradient(True)
    scale = float(optax.tree.norm(stored.mean))
    difference = optax.tree.norm(optax.tree.sub(stored.mean, checkpointed.mean))
    assert difference < 1e-4 * scale
    assert float(info.query_loss) == pytest.approx(float(stored_info.query_loss), rel=1e-5)


def test_the_state_of_a_learner_can_be_donated():
    """Its memory is used for the new state, and the old one is gone."""
    learner = sx.sigma_reptile(
        sx.ProximalGD(0.1), num_steps=2, optimiser=optax.adam(0.1), variance_optimiser=optax.adam(0.1)
    )
    tasks = image_tasks(jax.random.key(1), 2)

    def update(state, tasks):
        return learner.update(conv_net_loss, state, tasks, key=jax.random.key(2))[0]

    def begin():
        return learner.init(sx.Prior.create(conv_net(jax.random.key(0)), variance=0.1))

    state, donated = begin(), begin()
    with jax.numpy_dtype_promotion("standard"):  # Optax itself mixes integers and floats.
        expected, found = jax.jit(update)(state, tasks), jax.jit(update, donate_argnums=0)(donated, tasks)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated.prior.mean))
    assert jnp.array_equal(ravel_pytree(expected.prior.mean)[0], ravel_pytree(found.prior.mean)[0])
