"""Packed parameters are the same parameters: every learner and every way to adapt gives the same with both."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shrinx as sx
from shrinx import Packing, Prior, Task

WIDTH = 3


def make_prior(*, rates=None) -> Prior:
    """A deep network: equal layers, one of another shape, a vector, and one leaf that is split."""
    keys = jax.random.split(jax.random.key(0), 5)
    params = {f"layer{i}": {"w": jax.random.normal(keys[i], (WIDTH, WIDTH)), "b": jnp.zeros(WIDTH)} for i in range(4)}
    params["out"] = {"w": jax.random.normal(keys[4], (WIDTH, 1)), "b": jnp.zeros(1)}
    prior = Prior.create(params, modules=sx.by_axis(params, {"layer2": 0}), variance=0.5)
    if rates == "parameters":
        return Prior(prior.mean, prior.log_variance, prior.modules, jax.tree.map(jnp.ones_like, params))
    return (
        prior if rates is None else Prior(prior.mean, prior.log_variance, prior.modules, jnp.ones(len(prior.modules)))
    )


def loss_fn(params, data):
    inputs, targets = data
    for i in range(4):
        inputs = jnp.tanh(inputs @ params[f"layer{i}"]["w"] + params[f"layer{i}"]["b"][None])
    return jnp.mean((inputs @ params["out"]["w"] + params["out"]["b"][None] - targets) ** 2)


def make_data(*shape):
    keys = jax.random.split(jax.random.key(1), 2)
    return jax.random.normal(keys[0], (*shape, 5, WIDTH)), jax.random.normal(keys[1], (*shape, 5, 1))


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


@pytest.mark.parametrize("rates", [None, "modules", "parameters"])
def test_leaves_of_one_shape_are_one_and_come_back(rates):
    prior = make_prior(rates=rates)
    packing = Packing(prior)
    packed = packing.pack_prior(prior)
    # Layer 2 is split by rows and stands apart; vectors are not of one shape with each other's modules.
    assert len(jax.tree.leaves(packed.mean)) == 6
    assert (packed.modules.names, packed.modules.sizes) == (prior.modules.names, prior.modules.sizes)
    assert_same(packing.unpack_prior(packed), prior)


@pytest.mark.parametrize("trainable", [None, ("layer1", "layer2[1]", "out")])
@pytest.mark.parametrize("solver", [sx.ProximalGD(0.1), sx.ProximalAdam(0.1)], ids=["gd", "adam"])
def test_adaptation_is_the_same(solver, trainable):
    prior, data = make_prior(), make_data()
    packing = Packing(prior)
    options = {"num_steps": 7, "trainable": trainable}
    ours = sx.adapt(packing.loss_fn(loss_fn), packing.pack_prior(prior), data, solver, **options)
    assert_same(packing.unpack(ours.params), sx.adapt(loss_fn, prior, data, solver, **options).params)


@pytest.mark.parametrize("learner", [sx.sigma_maml, sx.sigma_imaml, sx.sigma_reptile])
def test_learning_is_the_same(learner):
    prior = make_prior()
    packing = Packing(prior)
    learn = learner(sx.ProximalGD(0.1), num_steps=5, optimiser=optax.sgd(0.1), variance_optimiser=optax.sgd(0.1))

    def learned(loss_fn, prior):
        update = jax.jit(lambda state, key: learn.update(loss_fn, state, Task(make_data(3), make_data(3)), key=key)[0])
        state = learn.init(prior)
        for step in range(2):
            state = update(state, jax.random.key(step))
        return state.prior

    assert_same(
        packing.unpack_prior(learned(packing.loss_fn(loss_fn), packing.pack_prior(prior))), learned(loss_fn, prior)
    )


def test_a_packed_loss_is_compiled_once():
    """However often it is asked for, and also where it has arrays of its own."""
    traces = []

    def counted(params, data):
        traces.append(None)
        return loss_fn(params, data)

    prior = make_prior()
    packing = Packing(prior)
    counts = []
    for _ in range(3):
        sx.adapt(packing.loss_fn(counted), packing.pack_prior(prior), make_data(), sx.ProximalGD(0.1), num_steps=2)
        counts.append(len(traces))
    assert len(set(counts)) == 1


@pytest.mark.parametrize("adjoint", [sx.Unroll(), sx.Implicit(), sx.FirstOrder()])
def test_a_packed_loss_may_close_over_what_is_traced(adjoint):
    prior, data = make_prior(), make_data()
    packing = Packing(prior)

    def slope(packed, scale):
        def scaled(params, data):
            return scale * loss_fn(packing.unpack(params) if packed else params, data)

        def moved(prior):
            adapted = sx.adapt(scaled, prior, data, sx.ProximalGD(0.1), num_steps=3, adjoint=adjoint)
            return jnp.sum(packing.unpack(adapted.params)["out"]["b"] if packed else adapted.params["out"]["b"])

        return jax.grad(moved)(packing.pack_prior(prior) if packed else prior).log_variance

    ours, theirs = (jax.vmap(lambda scale, packed=packed: slope(packed, scale))(jnp.ones(2)) for packed in (1, 0))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_priors_that_a_packing_was_not_made_for():
    prior = make_prior()
    packing = Packing(prior)
    other = Prior.create(prior.mean, modules=sx.by_leaf(prior.mean))
    for call in (lambda: packing.pack_prior(other), lambda: packing.unpack_prior(prior)):
        with pytest.raises(ValueError, match=r"this packing was made for Modules\("):
            call()


def test_rates_of_a_lone_array():
    prior = sx.Prior.create(jnp.zeros(3))
    learner = sx.meta_sgd(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1), rate_optimiser=optax.sgd(0.1))
    prior = learner.init(prior).prior
    packing = Packing(prior)
    loss = lambda theta, x: jnp.sum((theta - x) ** 2)  # noqa: E731
    options = {"num_steps": 2}
    ours = sx.adapt(packing.loss_fn(loss), packing.pack_prior(prior), jnp.ones(3), learner.solver, **options)
    assert_same(packing.unpack(ours.params), sx.adapt(loss, prior, jnp.ones(3), learner.solver, **options).params)
