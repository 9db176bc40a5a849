"""Tasks that come back: going on with an adaptation is the same as one long adaptation, and what it is good for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import make_learners, relaxed

import shrinx as sx

SOLVERS = {
    "gd": sx.ProximalGD(0.1),
    "adam": sx.ProximalAdam(0.05),
    "backtracking": sx.ProximalBacktracking(0.3),
    "averaged": sx.Averaged(sx.ProximalAdam(0.05), 7),
}
STILL = relaxed(optax.sgd(0.0))


def loss_fn(params, batch):
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["body"]) @ params["head"] - y) ** 2)


def make_prior(variance=2.0):
    keys = jax.random.split(jax.random.key(1))
    params = {"body": jax.random.normal(keys[0], (3, 4)), "head": jax.random.normal(keys[1], (4,))}
    return sx.Prior.create(params, variance=variance)


def make_tasks(num_tasks=3):
    x = jax.random.normal(jax.random.key(2), (num_tasks, 16, 3))
    y = jnp.sin(x.sum(axis=-1) + jnp.arange(0.0, num_tasks)[:, None])
    return sx.Task(support=(x[:, :8], y[:, :8]), query=(x[:, 8:], y[:, 8:]))


def go_on(learner, prior, tasks, times):
    progress = learner.progress(prior, 3)
    for _ in range(times):
        gradient, info = learner.gradient(loss_fn, prior, sx.Task(tasks.support, tasks.query, progress, tasks.mesh))
        progress = info.progress
    return gradient, info


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("name", ["sigma_imaml", "sigma_reptile", "imaml", "reptile", "fomaml"])
def test_three_updates_are_one_adaptation_three_times_as_long(x64, name, solver):
    prior = make_prior()
    gradient, info = go_on(make_learners(solver, num_steps=5)[name], prior, make_tasks(), times=3)
    expected, long = make_learners(solver, num_steps=15)[name].gradient(loss_fn, prior, make_tasks())
    np.testing.assert_allclose(info.query_losses, long.query_losses, rtol=1e-12)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_backpropagation_ends_where_the_update_began(x64):
    """The derivative is of the update's own steps, as with `Unroll(last=...)`."""
    prior = make_prior()
    common = {"optimiser": STILL, "variance_optimiser": STILL}
    gradient, _ = go_on(sx.sigma_maml(sx.ProximalGD(0.1), num_steps=5, **common), prior, make_tasks(), times=3)
    adjoint = sx.Predictive(sx.Unroll(last=5))
    expected, _ = sx.Learner(adjoint, sx.ProximalGD(0.1), num_steps=15, **common).gradient(loss_fn, prior, make_tasks())
    np.testing.assert_allclose(gradient.log_variance, expected.log_variance, rtol=1e-9)


@pytest.mark.parametrize("options", [{"chunk_size": 2}, {"trainable": "head"}], ids=["chunks", "trainable"])
def test_with_options_of_the_learner(x64, options):
    prior = make_prior()
    common = {"optimiser": STILL, "variance_optimiser": STILL, **options}
    short, long = (sx.sigma_reptile(sx.ProximalGD(0.1), num_steps=count, **common) for count in (5, 15))
    _, info = go_on(short, prior, make_tasks(), times=3)
    np.testing.assert_allclose(
        info.query_losses, long.gradient(loss_fn, prior, make_tasks())[1].query_losses, rtol=1e-12
    )
    sizes = {leaf.size for leaf in jax.tree.leaves(info.progress.displacement)}
    assert sizes == ({3 * 4} if "trainable" in options else {3 * 4, 3 * 12})


def test_spread_over_devices(x64):
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("tasks",))
    learner, prior = make_learners()["sigma_reptile"], make_prior()
    expected = go_on(learner, prior, make_tasks(), times=2)[1]
    info = go_on(learner, prior, sx.spread(make_tasks(), mesh), times=2)[1]
    np.testing.assert_allclose(info.query_losses, expected.query_losses, rtol=1e-12)
    assert info.progress is not None


def test_a_task_that_failed_begins_anew():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    x, y = tasks.support
    broken = sx.Task((x, y.at[1].set(jnp.nan)), tasks.query, learner.progress(prior, 3))
    info = learner.gradient(loss_fn, prior, broken)[1]
    assert info.healthy.tolist() == [True, False, True]
    lengths = jnp.abs(info.progress.displacement["head"]).sum(axis=-1)
    assert (lengths > 0).tolist() == [True, False, True]
    assert info.progress.solver.num_steps.tolist() == [5, 0, 5]


def test_it_costs_nothing_where_it_is_not_asked_for():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    assert learner.gradient(loss_fn, prior, tasks)[1].progress is None


def test_progress_of_another_solver():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    other = make_learners(sx.ProximalAdam(0.1))["sigma_reptile"].progress(prior, 3)
    with pytest.raises(ValueError, match=r"of another network or solver: begin with `learner.progress"):
        learner.gradient(loss_fn, prior, sx.Task(tasks.support, tasks.query, other))


def test_progress_of_fewer_tasks():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    with pytest.raises(ValueError, match="leading task axes differ"):
        learner.gradient(loss_fn, prior, sx.Task(tasks.support, tasks.query, learner.progress(prior, 2)))


def test_variances_for_converged_adaptation_from_updates_of_one_step(x64):
    """Normal observations of normal means: the best variance is known, and steps far too short to arrive find it.

    Task t has a mean μₜ ~ N(0, τ²) in ten coordinates, one observation of it with variance 1 to adapt to and many to
    be judged by. With loss ½|θ - x|² the estimate is x σ²/(1 + σ²), and the best σ² is a ratio of sums over tasks.
    """
    keys = jax.random.split(jax.random.key(3), 2)
    means = 0.7 * jax.random.normal(keys[0], (40, 10))
    observed = means + jax.random.normal(keys[1], means.shape)
    tasks = sx.Task(support=observed, query=means)
    share = float(jnp.sum(observed * means) / jnp.sum(observed**2))
    best = share / (1 - share)

    def loss_fn(theta, x):
        return 0.5 * jnp.sum((theta - x) ** 2)

    def learned(go_on):
        learner = sx.sigma_reptile(
            sx.ProximalGD(0.1),
            num_steps=1,
            optimiser=STILL,
            variance_optimiser=relaxed(optax.adam(0.02)),
            linear_solver=sx.CG(max_steps=10),
        )
        state = learner.init(sx.Prior.create(jnp.zeros(10), variance=1.0))
        progress = learner.progress(state.prior, 40) if go_on else None

        def update(carry, _):
            state, progress = carry
            state, info = learner.update(loss_fn, state, sx.Task(tasks.support, tasks.query, progress))
            return (state, info.progress), None

        (state, _), _ = jax.lax.scan(update, (state, progress), length=600)
        return float(state.prior.variance[0])

    np.testing.assert_allclose(learned(go_on=True), best, rtol=1e-3)
    assert learned(go_on=False) > 3 * best
