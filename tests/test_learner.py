"""The conformance suite: every algorithm on every model."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import KINDS, MEAN, NAMES, make_learners, relaxed
from problems import conv_net, conv_net_loss, image_tasks

import shrinx as sx
from shrinx.tasks import normal


@functools.cache  # One loss function per model, so that tests share compiled programs.
def conv_model():
    prior = sx.Prior.create(conv_net(jax.random.key(0), blocks=1), variance=0.1)
    return conv_net_loss, prior, image_tasks(jax.random.key(1), 5)


@functools.cache
def equinox_model():
    model = eqx.nn.MLP(1, 1, width_size=8, depth=2, activation=jnp.tanh, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params, batch):
        x, y = batch
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    x = jnp.broadcast_to(jnp.linspace(-3, 3, 10)[None, :, None], (5, 10, 1))
    y = jnp.sin(x + jnp.arange(5.0)[:, None, None])
    return loss_fn, sx.Prior.create(params, variance=0.1), sx.Task(support=(x, y), query=(x + 0.1, y))


@functools.cache
def lone_array_model():
    tasks = normal.sample_tasks(jax.random.key(0), 5, mean=1.0, variance=0.5, num_support=4, num_query=3)
    return normal.loss_fn, sx.Prior.create(jnp.zeros(()), variance=0.5), tasks


MODELS = {"conv": conv_model, "equinox": equinox_model, "lone": lone_array_model}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def assert_trees_close(a, b, rtol=1e-4, atol=1e-6):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def test_update_keeps_structure_and_dtype_and_traces_once(name, model):
    loss_fn, prior, tasks = model
    traces = []

    def counted(params, batch):
        traces.append(None)
        return loss_fn(params, batch)

    learner = make_learners()[name]
    state = first = learner.init(prior)
    counts = []
    for _ in range(10):
        state, info = learner.update(counted, state, tasks, key=jax.random.key(0))
        counts.append(len(traces))
    assert len(set(counts)) == 1, counts
    assert state.step == 10
    assert info.num_failed == 0
    assert jax.tree.structure(state) == jax.tree.structure(first)
    before, after = (jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (first, state))
    assert before == after
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.prior.mean))
    # Only the σ-methods move the variances, and only Meta-SGD has rates.
    moved = not np.array_equal(state.prior.log_variance, first.prior.log_variance)
    assert moved == name.startswith("sigma")
    assert (state.prior.rates is not None) == name.startswith("meta_sgd")
    assert not all(
        jnp.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first.prior.mean), jax.tree.leaves(state.prior.mean), strict=True)
    )


def test_vmap_over_tasks_equals_a_loop(name, model):
    loss_fn, prior, tasks = model
    together, info = make_learners()[name].gradient(loss_fn, prior, tasks)
    alone = [
        make_learners()[name].gradient(loss_fn, prior, jax.tree.map(lambda x, i=i: x[i : i + 1], tasks))
        for i in range(5)
    ]
    mean = jax.tree.map(lambda *gradients: sum(gradients) / 5, *[gradient for gradient, _ in alone])
    scale = max(1.0, float(optax.tree.norm(mean)))
    assert_trees_close(together, mean, atol=1e-5 * scale)
    np.testing.assert_allclose(info.query_losses, [float(i.query_loss) for _, i in alone], rtol=1e-4)


def test_chunks_change_nothing(kind):
    loss_fn, prior, tasks = equinox_model()
    together, info = make_learners()[kind].gradient(loss_fn, prior, tasks)
    chunked, chunked_info = make_learners(chunk_size=2)[kind].gradient(loss_fn, prior, tasks)
    assert_trees_close(chunked, together, atol=1e-5 * max(1.0, float(optax.tree.norm(together))))
    np.testing.assert_allclose(chunked_info.query_losses, info.query_losses, rtol=1e-4)


def test_learning_lowers_the_query_loss(name):
    loss_fn, prior, tasks = equinox_model()
    learner = make_learners()[name]
    state = learner.init(prior)
    losses = []
    for _ in range(200):
        state, info = learner.update(loss_fn, state, tasks)
        losses.append(float(info.query_loss))
    assert losses[-1] < losses[0]


def test_a_failed_task_is_left_out_and_counted(kind):
    loss_fn, prior, tasks = equinox_model()
    x, y = tasks.support
    broken = sx.Task(support=(x.at[2].set(jnp.nan), y), query=tasks.query)
    healthy = jax.tree.map(lambda x: x[np.array([0, 1, 3, 4])], tasks)
    learner = make_learners()[kind]
    gradient, info = learner.gradient(loss_fn, prior, broken)
    expected, _ = learner.gradient(loss_fn, prior, healthy)
    assert info.num_failed == 1
    np.testing.assert_array_equal(info.healthy, [True, True, False, True, True])
    assert info.failed_step[2] == 0
    assert jnp.isfinite(info.query_loss)
    assert_trees_close(gradient, expected, atol=1e-5 * max(1.0, float(optax.tree.norm(expected))))


def test_nothing_moves_when_every_task_fails(kind):
    loss_fn, prior, tasks = equinox_model()
    x, y = tasks.support
    learner = make_learners()[kind]
    first, _ = learner.update(loss_fn, learner.init(prior), tasks)
    state, info = learner.update(loss_fn, first, sx.Task((x * jnp.nan, y), tasks.query))
    assert info.num_failed == 5
    assert_trees_close((state.prior, state.opt_state), (first.prior, first.opt_state), rtol=0, atol=0)
    assert state.step == 2


def test_a_diverged_but_finite_task_is_left_out():
    def loss_fn(theta, curvature):
        return 0.5 * jnp.sum(curvature * theta**2)

    prior = sx.Prior.create(jnp.ones(1), variance=1e3)
    tasks = sx.Task(support=jnp.array([[1.0], [50.0]]), query=jnp.ones((2, 1)))
    options = {"num_steps": 10, "optimiser": optax.sgd(0.1)}
    _, info = sx.maml(sx.ProximalGD(0.1), **options).gradient(loss_fn, prior, tasks)
    assert jnp.isfinite(info.query_losses).all()
    np.testing.assert_array_equal(info.healthy, [True, False])
    _, info = sx.maml(sx.ProximalGD(0.1), divergence=math.inf, **options).gradient(loss_fn, prior, tasks)
    assert info.healthy.all()


def test_task_gradients_are_clipped(kind):
    loss_fn, prior, tasks = equinox_model()
    free, info = make_learners()[kind].gradient(loss_fn, prior, tasks)
    limit = 0.5 * float(jnp.min(info.gradient_norm))
    clipped, _ = make_learners(max_task_norm=limit)[kind].gradient(loss_fn, prior, tasks)
    assert optax.tree.norm(clipped.mean) <= limit * 1.0001
    assert optax.tree.norm(clipped.log_variance) <= limit * 1.0001
    loose, _ = make_learners(max_task_norm=1e9)[kind].gradient(loss_fn, prior, tasks)
    assert_trees_close(loose, free)


def test_mini_batches_inside_the_learner(kind):
    loss_fn, prior, tasks = equinox_model()

    def sample(key, data):
        rows = jax.random.choice(key, 10, (6,))
        return jax.tree.map(lambda x: x[rows], data)

    learner = make_learners(sample=sample, query_sample=sample)[kind]
    one, _ = learner.gradient(loss_fn, prior, tasks, key=jax.random.key(0))
    same, _ = learner.gradient(loss_fn, prior, tasks, key=jax.random.key(0))
    other, _ = learner.gradient(loss_fn, prior, tasks, key=jax.random.key(1))
    assert_trees_close(one, same, rtol=0, atol=0)
    assert not np.allclose(one.mean.layers[0].weight, other.mean.layers[0].weight)
    with pytest.raises(ValueError, match="need a `key`"):
        learner.gradient(loss_fn, prior, tasks)


SIGMA = [name for name in NAMES if name.startswith("sigma")]


@pytest.mark.parametrize("sigma", SIGMA)
def test_warm_up_holds_the_variances(sigma):
    loss_fn, prior, tasks = equinox_model()
    learner = make_learners(warmup=3)[sigma]
    state = learner.init(prior)
    for step in range(5):
        before = state.prior
        state, _ = learner.update(loss_fn, state, tasks)
        held = np.array_equal(before.log_variance, state.prior.log_variance)
        assert held == (step < 3)
        assert not np.array_equal(before.mean.layers[0].bias, state.prior.mean.layers[0].bias)


@pytest.mark.parametrize("sigma", SIGMA)
def test_chosen_and_limiting_variances_stay(sigma):
    loss_fn, prior, tasks = equinox_model()
    names = prior.modules.names
    prior = sx.Prior.create(prior.mean, variance={names[0]: 0.0, names[1]: 0.1, names[2]: 0.1})
    learner = make_learners(learned=(names[0], names[1]))[sigma]
    state, _ = learner.update(loss_fn, learner.init(prior), tasks)
    np.testing.assert_array_equal(state.prior.log_variance == prior.log_variance, [True, False, True])


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_optimisers_that_take_norms_see_no_limits(limit):
    """LAMB's steps are relative to the length of what it moves, which one infinite logarithm would make infinite."""
    loss_fn, prior, tasks = equinox_model()
    names = prior.modules.names
    prior = sx.Prior.create(prior.mean, variance={names[0]: limit, names[1]: 0.1, names[2]: 0.1})
    learner = sx.sigma_maml(
        sx.ProximalGD(0.1), num_steps=3, optimiser=MEAN, variance_optimiser=relaxed(optax.lamb(0.01))
    )
    state, info = learner.update(loss_fn, learner.init(prior), tasks)
    assert info.healthy.all()
    assert state.prior.log_variance[0] == prior.log_variance[0]
    moved = np.abs(state.prior.log_variance - prior.log_variance)[1:]
    assert ((moved > 1e-4) & (moved < 0.1)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_updates_in_sixteen_bits(name, dtype):
    prior = sx.Prior.create({"a": jnp.ones(2, dtype), "b": jnp.ones((2, 2), dtype)}, variance=1e-3)
    data = jnp.full((3, 2), 2.0, dtype)

    def loss_fn(params, x):
        return jnp.sum((params["a"] + params["b"].sum(0) - x).astype(jnp.float32) ** 2)

    learner = make_learners()[name]
    first = learner.init(prior)
    state, info = learner.update(loss_fn, first, sx.Task(data, data))
    assert info.healthy.all()
    before, after = (jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (first, state))
    assert before == after
    progress = learner.progress(state.prior, 3)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(progress.displacement))


@pytest.mark.parametrize("sigma", SIGMA)
def test_variances_are_clipped_to_their_range(sigma):
    loss_fn, prior, tasks = equinox_model()
    learner = getattr(sx, sigma)(
        sx.ProximalGD(0.1),
        num_steps=5,
        optimiser=optax.sgd(0.1),
        variance_optimiser=optax.sgd(1e6),
        variance_range=(0.05, 0.2),
    )
    state, _ = learner.update(loss_fn, learner.init(prior), tasks)
    variance = np.asarray(state.prior.variance)
    assert ((variance >= 0.0499) & (variance <= 0.2001)).all()
    assert not np.allclose(variance, 0.1)


def test_the_regulariser_pulls_idle_variances_down():
    """A module the loss does not depend on has no meta-gradient; only the regulariser moves it, to β/2."""

    def loss_fn(params, data):
        return jnp.sum((params["used"] - data) ** 2)

    prior = sx.Prior.create({"used": jnp.zeros(1), "idle": jnp.zeros(1)}, variance=1.0)
    tasks = sx.Task(support=jnp.array([[2.0], [-2.0]]), query=jnp.array([[2.0], [-2.0]]))
    learner = sx.sigma_imaml(
        sx.ProximalGD(0.1),
        num_steps=100,
        optimiser=optax.sgd(0.0),
        variance_optimiser=relaxed(optax.adam(0.05)),
        regulariser=0.02,
    )
    state = learner.init(prior)
    for _ in range(500):
        state, _ = learner.update(loss_fn, state, tasks)
    assert float(state.prior.variance[0]) == pytest.approx(0.01, rel=0.05)
    assert state.prior.variance[1] > 1.0


def test_meta_sgd_learns_which_parameters_to_move():
    def loss_fn(params, data):
        return jnp.sum((params["used"] + 0.0 * params["idle"] - data) ** 2)

    prior = sx.Prior.create({"used": jnp.zeros(1), "idle": jnp.zeros(1)})
    tasks = sx.Task(support=jnp.array([[2.0], [-2.0]]), query=jnp.array([[2.0], [-2.0]]))
    for rates in ("parameter", "module"):
        learner = sx.meta_sgd(
            sx.ProximalGD(0.01),
            num_steps=3,
            optimiser=optax.sgd(0.0),
            rate_optimiser=relaxed(optax.adam(0.1)),
            rates=rates,
        )
        state = learner.init(prior)
        for _ in range(100):
            state, info = learner.update(loss_fn, state, tasks)
        used, idle = (
            (state.prior.rates[1], state.prior.rates[0])
            if rates == "module"
            else (state.prior.rates["used"][0], state.prior.rates["idle"][0])
        )
        assert used > 3
        assert idle == 1
        # The learned rates are part of the prior, so `adapt` uses them too.
        adapted = sx.adapt(loss_fn, state.prior, jnp.array([2.0]), sx.ProximalGD(0.01), num_steps=3)
        assert float(loss_fn(adapted.params, jnp.array([2.0]))) == pytest.approx(float(info.query_losses[0]), rel=0.2)


def test_update_inside_a_users_own_scan():
    loss_fn, prior, tasks = equinox_model()
    learner = make_learners()["sigma_imaml"]

    @jax.jit
    def train(state):
        return jax.lax.scan(lambda s, _: learner.update(loss_fn, s, tasks), state, None, length=3)

    state, infos = train(learner.init(prior))
    one_by_one = learner.init(prior)
    for _ in range(3):
        one_by_one, _ = learner.update(loss_fn, one_by_one, tasks)
    assert infos.query_loss.shape == (3,)
    assert_trees_close(state.prior, one_by_one.prior)


def test_a_held_mean():
    """Of a pretrained network, say: the variances alone are learned."""
    learner = sx.sigma_reptile(
        sx.ProximalGD(0.1), num_steps=1, optimiser=optax.set_to_zero(), variance_optimiser=relaxed(optax.adam(0.1))
    )
    prior = sx.Prior.create(jnp.zeros(2), variance=1.0)
    tasks = sx.Task(support=jnp.ones((3, 2)), query=jnp.ones((3, 2)))
    state, _ = learner.update(lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2), learner.init(prior), tasks)
    assert (state.prior.mean == prior.mean).all()
    assert (state.prior.log_variance > prior.log_variance).all()


def test_strong_priors_in_half_precision():
    """A precision of 10⁵ is more than float16 can hold, the meta-gradient is not."""
    prior = sx.Prior.create({"a": jnp.zeros(2, jnp.float16)}, variance=1e-5)
    data = jnp.ones((2, 2), jnp.float16)
    _, info = make_learners()["sigma_reptile"].gradient(
        lambda params, x: jnp.sum((params["a"] - x) ** 2).astype(jnp.float32), prior, sx.Task(data, data)
    )
    assert bool(jnp.all(info.healthy))
