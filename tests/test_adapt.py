import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import conv_net, conv_net_loss, image_tasks

import shrinx as sx


def mse(params, batch):
    x, y = batch
    hidden = jnp.tanh(x @ params["body"]["w"] + params["body"]["b"][None])
    return jnp.mean((hidden @ params["head"]["w"] - y) ** 2)


@pytest.fixture
def regression():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "body": {"w": jax.random.normal(keys[0], (3, 64)), "b": jnp.zeros(64)},
        "head": {"w": 0.1 * jax.random.normal(keys[1], (64, 1))},
    }
    data = (jax.random.normal(keys[2], (20, 3)), jax.random.normal(keys[3], (20, 1)))
    return sx.Prior.create(params, variance=10.0), data


def compiled_adapt(prior, data, **options):
    return (
        jax.jit(lambda p, d: sx.adapt(mse, p, d, sx.ProximalAdam(0.01), **{"num_steps": 50, **options}))
        .lower(prior, data)
        .compile()
    )


def test_losses_go_down_and_are_those_of_the_trajectory(regression):
    prior, data = regression
    adapted = sx.adapt(mse, prior, data, sx.ProximalGD(0.05), num_steps=100)
    assert adapted.losses[0] == pytest.approx(float(mse(prior.mean, data)), rel=1e-6)
    assert adapted.losses[-1] < 0.5 * adapted.losses[0]
    assert adapted.residual < 0.5
    one_less = sx.adapt(mse, prior, data, sx.ProximalGD(0.05), num_steps=99)
    assert adapted.losses[-1] == pytest.approx(float(mse(one_less.params, data)), rel=1e-5)


def test_frozen_modules_cost_nothing(regression):
    """Adapting the head alone compiles to a fraction of the work and of the state of adapting everything."""
    prior, data = regression
    all_modules = compiled_adapt(prior, data)
    head_only = compiled_adapt(prior, data, trainable=["head"])
    flops = [c.cost_analysis()["flops"] for c in (all_modules, head_only)]
    assert flops[1] < 0.6 * flops[0]
    jaxpr = jax.make_jaxpr(lambda p, d: sx.adapt(mse, p, d, sx.ProximalAdam(0.01), num_steps=50, trainable=["head"]))(
        prior, data
    )
    [scan] = scans_of(jaxpr)
    shapes = [var.aval.shape for var in scan.outvars]
    # What is carried: the displacement and Adam's two moments, all of the head; nothing of the body's (3, 64).
    assert shapes.count((64, 1)) == 3
    assert (3, 64) not in shapes


def scans_of(jaxpr):
    """The outermost scans of a program, wherever they are nested in jitted functions."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            found.append(eqn)
        elif "jaxpr" in eqn.params:
            found += scans_of(eqn.params["jaxpr"])
    return found


def test_trainable_equals_variance_zero_elsewhere(regression):
    prior, data = regression
    part = sx.adapt(mse, prior, data, sx.ProximalGD(0.05), num_steps=20, trainable="head")
    frozen = sx.adapt(mse, prior.freeze_all_but("head"), data, sx.ProximalGD(0.05), num_steps=20)
    for a, b in zip(jax.tree.leaves(part.params), jax.tree.leaves(frozen.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert jnp.array_equal(part.params["body"]["w"], prior.mean["body"]["w"])
    chosen = sx.select(prior.freeze_all_but("head"), sx.TopK(1))
    assert jnp.array_equal(
        part.params["head"]["w"],
        sx.adapt(mse, prior, data, sx.ProximalGD(0.05), num_steps=20, trainable=chosen).params["head"]["w"],
    )


def test_trainable_parts_of_a_leaf():
    params = {"layer": {"w": jnp.zeros((4, 2)), "b": jnp.zeros(4)}}
    prior = sx.Prior.create(params, modules=sx.by_axis(params, {"layer": 0}), variance=1e3)

    def loss_fn(p, data):
        return jnp.sum((p["layer"]["w"] - data[0]) ** 2) + jnp.sum((p["layer"]["b"] - data[0, 0]) ** 2)

    adapted = sx.adapt(loss_fn, prior, jnp.ones((1, 1, 1)), sx.ProximalGD(0.3), num_steps=50, trainable="layer[2]")
    np.testing.assert_allclose(adapted.params["layer"]["w"][2], 1.0, rtol=1e-3)
    np.testing.assert_allclose(adapted.params["layer"]["b"], [0, 0, 1, 0], atol=1e-3)
    np.testing.assert_array_equal(adapted.params["layer"]["w"][np.array([0, 1, 3])], 0.0)


def test_mini_batches_come_from_sample_and_key(regression):
    prior, data = regression

    def sample(key, data):
        rows = jax.random.choice(key, 20, (5,))
        return jax.tree.map(lambda x: x[rows], data)

    def run(seed):
        return sx.adapt(
            mse, prior, data, sx.ProximalGD(0.05), num_steps=30, key=jax.random.key(seed), sample=sample
        ).losses

    assert jnp.array_equal(run(0), run(0))
    assert not jnp.array_equal(run(0), run(1))
    assert len(set(np.asarray(run(0)).tolist())) == 30  # A batch of its own for every step.


def test_memory_is_flat_in_the_number_of_steps_without_a_gradient(regression):
    prior, data = regression
    few, many = (compiled_adapt(prior, data, num_steps=n).memory_analysis().temp_size_in_bytes for n in (100, 10_000))
    # Per step there is one loss and one gradient norm to report, nothing else.
    assert many - few < 10_000 * 16


def test_stops_cleanly_at_a_non_finite_loss():
    def loss_fn(theta, data):
        return jnp.sum(data * theta**4)

    prior = sx.Prior.create(jnp.full(2, 3.0), variance=1e5)
    adapted = sx.adapt(loss_fn, prior, jnp.ones(2), sx.ProximalGD(1.0), num_steps=50)
    assert 0 < adapted.failed_step < 49
    assert jnp.isfinite(adapted.params).all()
    assert jnp.isfinite(adapted.losses[: int(adapted.failed_step)]).all()
    step = int(adapted.failed_step)
    assert not (jnp.isfinite(adapted.losses[step]) & jnp.isfinite(adapted.gradient_norms[step]))


def test_nan_in_the_data_is_reported(regression):
    prior, (x, y) = regression
    adapted = sx.adapt(mse, prior, (x.at[0, 0].set(jnp.nan), y), sx.ProximalGD(0.05), num_steps=10)
    assert adapted.failed_step == 0
    assert all(
        jnp.array_equal(a, b) for a, b in zip(jax.tree.leaves(adapted.params), jax.tree.leaves(prior.mean), strict=True)
    )


def test_evaluate_and_ablate_agree_with_adapt():
    prior = sx.Prior.create(conv_net(jax.random.key(0)), variance=10.0)
    tasks = image_tasks(jax.random.key(1), 5)
    scores = sx.evaluate(conv_net_loss, prior, tasks, sx.ProximalGD(0.1), num_steps=5)
    chunked = sx.evaluate(conv_net_loss, prior, tasks, sx.ProximalGD(0.1), num_steps=5, chunk_size=2)
    np.testing.assert_allclose(scores, chunked, rtol=1e-5)
    one = jax.tree.map(lambda x: x[3], tasks)
    adapted = sx.adapt(conv_net_loss, prior, one.support, sx.ProximalGD(0.1), num_steps=5)
    assert float(scores[3]) == pytest.approx(float(conv_net_loss(adapted.params, one.query)), rel=1e-5)
    curve = sx.adaptation_curve(conv_net_loss, prior, tasks, sx.ProximalGD(0.1), num_steps=5)
    assert curve.shape == (5, 6)
    np.testing.assert_allclose(curve[:, -1], scores, rtol=1e-5)
    only = sx.ablate(
        conv_net_loss, prior, tasks, sx.ProximalGD(0.1), num_steps=5, subsets={"last": ["output"], "first": "conv0"}
    )
    assert set(only) == {"last", "first"}
    adapted = sx.adapt(conv_net_loss, prior, one.support, sx.ProximalGD(0.1), num_steps=5, trainable="output")
    assert float(only["last"][3]) == pytest.approx(float(conv_net_loss(adapted.params, one.query)), rel=1e-5)
    everything = sx.ablate(conv_net_loss, prior, tasks, sx.ProximalGD(0.1), num_steps=5)
    assert tuple(everything) == prior.modules.names
