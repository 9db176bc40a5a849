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


def go_on(learner, prior, tasks, times, progress=None):
    progress = learner.progress(prior, 3) if progress is None else progress
    for _ in range(times):
        gradient, info = learner.gradient(loss_fn, prior, sx.Task(tasks.support, tasks.query, progress=progress))
        progress = info.progress
    return gradient, info


def assert_close(ours, theirs, rtol=1e-9, atol=1e-12):
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("name", ["sigma_imaml", "sigma_reptile", "imaml", "reptile", "fomaml"])
def test_three_updates_are_one_adaptation_three_times_as_long(x64, name, solver):
    prior = make_prior()
    gradient, info = go_on(make_learners(solver, num_steps=5)[name], prior, make_tasks(), times=3)
    expected, long = make_learners(solver, num_steps=15)[name].gradient(loss_fn, prior, make_tasks())
    assert_close(gradient, expected)
    for name in ("query_losses", "residual", "healthy"):
        np.testing.assert_allclose(getattr(info, name), getattr(long, name), rtol=1e-9)


def test_backpropagation_ends_where_the_update_began(x64):
    """The derivative is of the update's own steps, as with `Unroll(last=...)`."""
    prior = make_prior()
    common = {"optimiser": STILL, "variance_optimiser": STILL}
    gradient, _ = go_on(sx.sigma_maml(sx.ProximalGD(0.1), num_steps=5, **common), prior, make_tasks(), times=3)
    adjoint = sx.Predictive(sx.Unroll(last=5))
    expected, _ = sx.Learner(adjoint, sx.ProximalGD(0.1), num_steps=15, **common).gradient(loss_fn, prior, make_tasks())
    assert_close(gradient, expected)


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


def test_tasks_move_with_the_mean(x64):
    """What is kept is the displacement: with another mean it is where the steps of `adapt` from there begin."""
    learner, prior, tasks = make_learners()["reptile"], make_prior(jnp.inf), make_tasks()
    _, info = go_on(learner, prior, tasks, times=1)
    elsewhere = sx.Prior.create(jax.tree.map(lambda leaf: leaf + 0.1, prior.mean), variance=jnp.inf)
    after = go_on(learner, elsewhere, tasks, times=1, progress=info.progress)[1].progress
    for row in range(3):
        here, support = jax.tree.map(lambda leaf, row=row: leaf[row], (info.progress.displacement, tasks.support))
        start = sx.Prior.create(elsewhere.at(here), variance=jnp.inf)
        adapted = sx.adapt(loss_fn, start, support, sx.ProximalGD(0.1), num_steps=5)
        expected = jax.tree.map(jnp.add, here, adapted.displacement)
        assert_close(jax.tree.map(lambda leaf, row=row: leaf[row], after.displacement), expected)


def test_backtracking_finds_its_step_size_again():
    """After convergence rounding decides about it, and a mean that moves must not find it at 0 or infinity."""
    learner = sx.sigma_reptile(
        sx.ProximalBacktracking(0.3), num_steps=40, optimiser=STILL, variance_optimiser=STILL, linear_solver=sx.CG()
    )
    centres = jnp.array([[1.0], [2.0]])
    tasks = sx.Task(support=centres, query=centres)

    def quadratic(theta, x):
        return 0.5 * jnp.sum((theta - x) ** 2)

    @jax.jit
    def update(mean, progress):
        prior = sx.Prior.create(mean, variance=1.0)
        return learner.gradient(quadratic, prior, sx.Task(tasks.support, tasks.query, progress=progress))[1]

    progress = learner.progress(sx.Prior.create(jnp.zeros(1)), 2)
    for _ in range(30):
        progress = update(jnp.zeros(1), progress).progress
    moved, anew = jnp.full(1, 0.5), learner.progress(sx.Prior.create(jnp.zeros(1)), 2)
    ours, fresh = (update(moved, start).query_losses for start in (progress, anew))
    np.testing.assert_allclose(ours, fresh, rtol=1e-3)


def test_divergence_is_judged_by_the_first_step_of_all():
    """Not by the first of the update, which may be tiny, or as large as the last."""
    learner = sx.reptile(sx.ProximalGD(2.2), num_steps=1, optimiser=STILL)
    prior = sx.Prior.create(jnp.zeros(1), variance=jnp.inf)
    x = jnp.ones((1, 1))
    progress, counts = learner.progress(prior, 1), []
    for _ in range(60):
        tasks = sx.Task(x, x, progress=progress)
        info = learner.gradient(lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2), prior, tasks)[1]
        progress = info.progress
        counts.append(int(progress.solver.num_steps[0]))
    assert 0 in counts
    assert max(counts) < 60


def test_bfloat16_and_mini_batches():
    def sample(key, data):
        rows = jax.random.choice(key, 8, (4,))
        return jax.tree.map(lambda leaf: leaf[rows], data)

    short = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), make_prior().mean)
    prior, tasks = sx.Prior.create(short, variance=2.0), jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_tasks())
    solver = sx.Averaged(sx.ProximalAdam(0.05), 7)
    common = {"num_steps": 5, "optimiser": STILL, "variance_optimiser": STILL, "sample": sample}
    learner = sx.sigma_reptile(solver, variance_adjoint=sx.FirstOrder(), **common)
    progress, losses = learner.progress(prior, 3), []
    for index in range(6):
        info = learner.gradient(
            loss_fn, prior, sx.Task(tasks.support, tasks.query, progress=progress), key=jax.random.key(index)
        )[1]
        assert jax.tree.map(jnp.result_type, info.progress) == jax.tree.map(jnp.result_type, progress)
        progress = info.progress
        losses.append(float(jnp.mean(info.support_losses)))
    assert losses[-1] < losses[0]


def test_a_task_that_failed_begins_anew():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    x, y = tasks.support
    broken = sx.Task((x, y.at[1].set(jnp.nan)), tasks.query, progress=learner.progress(prior, 3))
    info = learner.gradient(loss_fn, prior, broken)[1]
    assert info.healthy.tolist() == [True, False, True]
    lengths = jnp.abs(info.progress.displacement["head"]).sum(axis=-1)
    assert (lengths > 0).tolist() == [True, False, True]
    assert info.progress.solver.num_steps.tolist() == [5, 0, 5]


def test_it_costs_nothing_where_it_is_not_asked_for():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    assert learner.gradient(loss_fn, prior, tasks)[1].progress is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda prior: make_learners(sx.ProximalAdam(0.1))["sigma_reptile"].progress(prior, 3),
            "of another network, solver or set of `trainable` modules: begin with `learner.progress",
        ),
        (
            lambda prior: jax.tree.map(
                lambda leaf: leaf.astype(jnp.float16) if leaf.dtype == jnp.float32 else leaf,
                make_learners()["sigma_reptile"].progress(prior, 3),
            ),
            r"progress.displacement\['body'\]` of a task is float16\[3, 4\] where this learner has float32\[3, 4\]",
        ),
        (
            lambda prior: make_learners()["sigma_reptile"].progress(prior, 2),
            "leading task axes differ",
        ),
    ],
    ids=["solver", "dtype", "fewer"],
)
def test_progress_that_is_not_the_learners(make, message):
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    with pytest.raises(ValueError, match=message):
        learner.gradient(loss_fn, prior, sx.Task(tasks.support, tasks.query, progress=make(prior)))


def test_held_out_tasks_begin_at_the_mean():
    learner, prior, tasks = make_learners()["sigma_reptile"], make_prior(), make_tasks()
    tasks = sx.Task(tasks.support, tasks.query, progress=learner.progress(prior, 3))
    with pytest.raises(ValueError, match=r"leave out `task\.progress`"):
        sx.evaluate(loss_fn, prior, tasks, sx.ProximalGD(0.1), num_steps=2)


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
            state, info = learner.update(loss_fn, state, sx.Task(tasks.support, tasks.query, progress=progress))
            return (state, info.progress), None

        (state, _), _ = jax.lax.scan(update, (state, progress), length=600)
        return float(state.prior.variance[0])

    np.testing.assert_allclose(learned(go_on=True), best, rtol=1e-3)
    assert learned(go_on=False) > 3 * best
