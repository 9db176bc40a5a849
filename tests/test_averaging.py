"""Averaged steps: the average by hand, what it is worth on mini-batches, and steps that fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import shrinx as sx
from shrinx._averaging import with_rate
from shrinx.experiments import find_experiment
from shrinx.experiments.algorithms import LearnerConfig, make_learner, make_solver

PRIOR = {"variance": {"a": 2.0, "b": jnp.inf}}
STEPS, WINDOW = 30, 8


def loss_fn(params, batch):
    return 0.5 * jnp.mean((params["a"] + params["b"] - batch) ** 2) + 0.1 * jnp.sum(params["b"] ** 2)


def sample(key, data):
    return jax.random.choice(key, data, (2,))


def prior_and_data():
    prior = sx.Prior.create({"a": jnp.zeros(()), "b": jnp.ones(())}, **PRIOR)
    return prior, jnp.array([1.0, 3.0, -2.0])


def adapt(solver, num_steps=STEPS, **options):
    prior, data = prior_and_data()
    return sx.adapt(loss_fn, prior, data, solver, num_steps=num_steps, key=jax.random.key(0), sample=sample, **options)


@pytest.mark.parametrize("solver", [sx.ProximalGD(0.5), sx.ProximalAdam(0.1)], ids=["gd", "adam"])
def test_it_is_the_average_of_the_solvers_own_steps(x64, solver):
    ways = [jax.tree.map(np.asarray, adapt(solver, count).params) for count in range(1, STEPS + 1)]
    for name in ("a", "b"):
        average = float(prior_and_data()[0].mean[name])
        for count, way in enumerate(ways, 1):
            average += (way[name] - average) / min(count, WINDOW)
        np.testing.assert_allclose(adapt(sx.Averaged(solver, WINDOW)).params[name], average, rtol=1e-6)
    steps = adapt(sx.Averaged(solver, WINDOW)), adapt(solver)
    np.testing.assert_array_equal(steps[0].losses, steps[1].losses)


def test_an_average_of_averages(x64):
    """What the inner one answers is averaged, not the steps it takes."""
    solver = sx.Averaged(sx.ProximalGD(0.5), WINDOW)
    ways = [jax.tree.map(np.asarray, adapt(solver, count).params) for count in range(1, STEPS + 1)]
    for name in ("a", "b"):
        average = float(prior_and_data()[0].mean[name])
        for count, way in enumerate(ways, 1):
            average += (way[name] - average) / min(count, 3)
        np.testing.assert_allclose(adapt(sx.Averaged(solver, 3)).params[name], average, rtol=1e-6)


def test_a_window_of_one_step_changes_nothing(x64):
    ours, plain = adapt(sx.Averaged(sx.ProximalGD(0.5), 1)), adapt(sx.ProximalGD(0.5))
    np.testing.assert_allclose(ours.displacement["a"], plain.displacement["a"], rtol=1e-12)


@pytest.mark.parametrize("steps", [None, [0, 3, STEPS]], ids=["every step", "some steps"])
def test_curves_are_of_the_average(x64, steps):
    prior, data = prior_and_data()
    solver = sx.Averaged(sx.ProximalGD(0.5), WINDOW)
    task = sx.Task(data, data)
    tasks = jax.tree.map(lambda leaf: leaf[None], task)
    key = jax.random.key(1)
    curve = sx.adaptation_curve(loss_fn, prior, tasks, solver, num_steps=STEPS, key=key, sample=sample, steps=steps)
    own = jax.random.split(key, 1)[0]
    for count in (3, STEPS):
        adapted = sx.adapt(loss_fn, prior, data, solver, num_steps=count, key=own, sample=sample)
        found = curve[0, count if steps is None else steps.index(count)]
        np.testing.assert_allclose(found, loss_fn(adapted.params, data), rtol=1e-6)


def test_the_gradient_of_step_sizes_goes_through_the_average(x64):
    """What Meta-SGD learns by, against finite differences."""
    prior, data = prior_and_data()
    flat = sx.Prior.create(prior.mean, variance=jnp.inf)

    def query_loss(rates):
        moved = sx.Prior(flat.mean, flat.log_variance, flat.modules, rates=jax.tree.map(jnp.asarray, rates))
        solver = sx.Averaged(sx.ProximalGD(0.5), WINDOW)
        adapted = sx.adapt(loss_fn, moved, data, solver, num_steps=STEPS, adjoint=sx.Unroll())
        return loss_fn(adapted.params, data[:2])

    check_grads(query_loss, ({"a": jnp.full((), 0.3), "b": jnp.full((), 0.2)},), order=1, modes=["rev"], eps=1e-5)


def test_on_minibatches_it_is_nearer_to_the_map_estimate(x64):
    """Over many seeds; with steps of 0.5 the jitter has a variance of a third of the batches' own, averaged a tenth."""
    prior, data = sx.Prior.create(jnp.zeros(()), variance=1e6), jnp.array([1.0, 3.0])

    def mean_square_error(solver):
        def one(key):
            adapted = sx.adapt(
                lambda p, x: 0.5 * jnp.mean((p - x) ** 2), prior, data, solver, num_steps=400, key=key, sample=sample
            )
            return (adapted.params - 2.0) ** 2

        return jnp.mean(jax.vmap(one)(jax.random.split(jax.random.key(0), 500)))

    plain, averaged = (mean_square_error(solver) for solver in (sx.ProximalGD(0.5), sx.Averaged(sx.ProximalGD(0.5))))
    # A batch's mean has variance 1/2; gradient descent with step a is a moving average of it, of variance a/(2 - a)/2.
    np.testing.assert_allclose(plain, 1 / 6, rtol=0.15)
    # An exponential average over w steps has 1/(2 w - 1) of the variance of what it averages, if that is independent.
    np.testing.assert_allclose(averaged, 0.5 / 199, rtol=0.15)


def test_the_variance_of_a_module_that_only_jitters(x64):
    """The data say nothing about the displacement. Without averaging the jitter alone calls for shrinkage."""
    prior, data = sx.Prior.create(jnp.zeros(()), variance=100.0), jnp.array([-1.0, 1.0])

    def slope(solver):
        def one(key, log_variance):
            moved = sx.Prior(prior.mean, log_variance, prior.modules)
            adapted = sx.adapt(
                lambda p, x: 0.5 * jnp.mean((p - x) ** 2),
                moved,
                data,
                solver,
                num_steps=400,
                key=key,
                sample=sample,
                adjoint=sx.FirstOrder(),
            )
            return 0.5 * jnp.mean((adapted.params - data) ** 2)

        keys = jax.random.split(jax.random.key(0), 500)
        return jnp.mean(jax.vmap(jax.grad(one, argnums=1), in_axes=(0, None))(keys, prior.log_variance))

    plain, averaged = slope(sx.ProximalGD(0.5)), slope(sx.Averaged(sx.ProximalGD(0.5)))
    assert plain > 0.1  # Its mean square, which descent on log σ² follows down.
    assert 0 <= averaged < plain / 30


@pytest.mark.parametrize("solver", [sx.ProximalGD(0.01), sx.ProximalAdam(0.01)], ids=["gd", "adam"])
def test_the_answer_stays_where_the_first_failure_found_it(solver):
    """One bad number among many: later batches are fine, and a solver's moments are not."""
    prior, data = sx.Prior.create(jnp.zeros(()), variance=jnp.inf), jnp.array([2.0] * 30 + [jnp.nan])

    def adapted(num_steps):
        return sx.adapt(
            lambda p, x: 0.5 * jnp.mean((p - x) ** 2),
            prior,
            data,
            sx.Averaged(solver, 4),
            num_steps=num_steps,
            key=jax.random.key(3),
            sample=sample,
        )

    whole = adapted(100)
    assert 0 < whole.failed_step < 99
    np.testing.assert_array_equal(whole.params, adapted(int(whole.failed_step)).params)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_small_changes_are_not_rounded_away(dtype):
    prior = sx.Prior.create(jnp.zeros((), dtype), variance=jnp.inf)

    def loss(params, x):
        return 0.5 * jnp.sum((params.astype(jnp.float32) - x) ** 2)

    solver = sx.ProximalGD(0.1)
    plain, averaged = (
        sx.adapt(loss, prior, jnp.ones(1), each, num_steps=2000).params for each in (solver, sx.Averaged(solver, 100))
    )
    assert averaged.dtype == dtype
    rounding = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.float32(averaged), np.float32(plain), rtol=max(1e-3, rounding))


@pytest.mark.parametrize("window", [10, 100, 1000])
@pytest.mark.parametrize("rate", [0.5, 0.02])
def test_a_bank_waits_for_the_average_to_settle(tmp_path, rate, window):
    prior = sx.Prior.create({"a": jnp.zeros(1)}, variance={"a": 1e3})

    def loss(params, x):
        return 0.5 * jnp.sum((params["a"] - x) ** 2)

    bank = sx.Bank.create(tmp_path / "bank", prior, "a")
    report = sx.adapt_task(bank, loss, "t", jnp.array([2.0]), sx.Averaged(sx.ProximalGD(rate), window))
    assert report.converged
    np.testing.assert_allclose(bank.params("t")["a"], 2 / 1.001, rtol=0.015)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [((0.1,), TypeError, "solver"), ((sx.ProximalGD(0.1), 0), ValueError, "`window`")],
)
def test_bad_arguments(arguments, error, said):
    with pytest.raises(error, match=said):
        sx.Averaged(*arguments)


def test_another_rate_for_averaged_solvers_too():
    assert with_rate(sx.ProximalGD(0.1), 0.2) == sx.ProximalGD(0.2)
    assert with_rate(sx.Averaged(sx.ProximalAdam(0.1), 7), 0.2) == sx.Averaged(sx.ProximalAdam(0.2), 7)


@pytest.mark.parametrize(
    ("changes", "test", "training"),
    [
        ({}, sx.ProximalGD(0.01), sx.ProximalGD(0.01)),
        ({"average": 20}, sx.Averaged(sx.ProximalGD(0.01), 20), sx.ProximalGD(0.01)),
        ({"average": 20, "average_training": True}, *[sx.Averaged(sx.ProximalGD(0.01), 20)] * 2),
    ],
)
def test_experiments_average_in_the_test_and_if_asked_in_training(changes, test, training):
    config = LearnerConfig(algorithm="reptile", **changes)
    assert make_solver(config) == test
    assert make_learner(config).solver == training


@pytest.mark.parametrize("name", ["sinusoid", "linear", "swirl", "normal"])
def test_held_out_tasks_are_adapted_to_by_the_averaged_solver(name):
    experiment = find_experiment(name)
    config = replace(experiment.config(experiment.algorithms[0], experiment.presets[0]), average=7)
    setup = experiment.module.setup(config)
    assert setup.solver_for(None) == sx.Averaged(setup.learner.solver, 7)
    training_too = experiment.module.setup(replace(config, average_training=True))
    assert training_too.solver_for(None) == training_too.learner.solver == setup.solver_for(None)
