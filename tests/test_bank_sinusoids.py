"""A bank of noisy sinusoids: adapted until converged, and as sure as it should be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import OPTIMISED
from lines import names_of

import shrinx as sx
from shrinx.bank import calibration
from shrinx.models import mlp
from shrinx.tasks import sinusoid


def noisy_sinusoids(key, num_tasks, noise, *, num_support=10, num_query=10):
    task_key, *keys = jax.random.split(key, 3)
    tasks = sinusoid.sample_tasks(task_key, num_tasks, num_support=num_support, num_query=num_query)

    def with_noise(key, part):
        return part[0], part[1] + noise * jax.random.normal(key, part[1].shape)

    return sx.Task(with_noise(keys[0], tasks.support), with_noise(keys[1], tasks.query))


SINUSOID_NOISE = 0.1


@pytest.fixture(scope="module")
def learned():
    """A prior learned from sinusoids seen under a little noise."""
    params = mlp.init(jax.random.key(0), (1, 40, 40, 1), first_scale=0.3)
    learner = sx.sigma_maml(
        sx.ProximalGD(0.01),
        num_steps=30,
        optimiser=optax.adam(5e-3),
        variance_optimiser=optax.adam(3e-2),
        max_task_norm=0.5,
    )

    @functools.partial(jax.jit, compiler_options=OPTIMISED)
    def train(state, keys):
        def update(state, key):
            return learner.update(mlp.squared_error, state, noisy_sinusoids(key, 5, SINUSOID_NOISE))[0], None

        return jax.lax.scan(update, state, keys)[0]

    prior = sx.Prior.create(params, modules=sx.by_leaf(params), variance=6.0)
    with jax.numpy_dtype_promotion("standard"):  # Optax raises rates to the power of a count.
        return train(learner.init(prior), jax.random.split(jax.random.key(1), 1500)).prior


@pytest.mark.slow
def test_no_early_stopping_is_needed(learned, tmp_path):
    """Until convergence is about as good as stopping at the best of all moments, which nobody knows."""
    chosen = ("b0", "w0")
    bank = sx.Bank.create(tmp_path / "bank", learned, chosen)
    tasks = noisy_sinusoids(jax.random.key(2), 50, SINUSOID_NOISE, num_query=100)
    solver = sx.ProximalGD(0.01)
    report = sx.adapt_task(bank, mlp.squared_error, names_of(50), tasks.support, solver, max_steps=3000)
    assert report.converged.mean() > 0.9
    x, y = tasks.query
    error = np.mean((bank.predict(mlp.apply, names_of(50), x, points=True) - y) ** 2)
    moments = {"num_steps": 1000, "steps": range(0, 1001, 20)}
    curve = sx.adaptation_curve(mlp.squared_error, learned, tasks, solver, trainable=chosen, **moments)
    best = float(jnp.min(jnp.mean(curve, axis=0)))
    assert error < 1.25 * best
    # Without the prior, with all modules, the same number of steps overfits.
    free = sx.Prior.create(learned.mean, modules=learned.modules, variance=jnp.inf)
    without = sx.evaluate(mlp.squared_error, free, tasks, solver, num_steps=1000)
    assert float(jnp.mean(without)) > 1.2 * error


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_coverage_on_held_out_sinusoids(learned, tmp_path, structure, record_property):
    def coverage(folder, key, scale):
        bank = sx.Bank.create(tmp_path / folder, learned, ("b0", "w0"), posterior=structure)
        tasks = noisy_sinusoids(key, 50, SINUSOID_NOISE, num_query=50)
        sx.adapt_task(bank, mlp.squared_error, names_of(50), tasks.support, sx.ProximalGD(0.01), loss_scale=scale)
        prediction = bank.predict(mlp.apply, names_of(50), tasks.query[0], points=True, uncertainty=True)
        errors = np.asarray(tasks.query[1]) - prediction.mean
        spread = np.sqrt(prediction.deviation**2 + SINUSOID_NOISE**2)
        return np.mean(np.abs(errors) < 1.96 * spread), calibration(errors, prediction.deviation, SINUSOID_NOISE)

    scale = 10 / (2 * SINUSOID_NOISE**2)  # Mean squared error of ten points, as a negative log-likelihood.
    as_learned, factor = coverage("first", jax.random.key(3), scale)
    calibrated, _ = coverage("second", jax.random.key(4), scale * factor)
    # Python's own numbers: the tests' workers can send no others.
    record_property("coverage as learned, factor, calibrated", tuple(map(float, (as_learned, factor, calibrated))))
    assert as_learned > 0.95
    assert 0.91 < calibrated < 0.98
