"""Going back through gradients by mixed modes: the numbers of reverse mode."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads
from problems import conv_net, conv_net_loss, image_tasks
from test_solver import SOLVERS

import shrinx as sx
from shrinx.models import mlp

HORIZON = 12


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # Optax's schedules mix integers and floats.
        yield


def regression():
    prior = sx.Prior.create(mlp.init(jax.random.key(0), (1, 8, 1)), variance=0.5)
    x = jnp.linspace(-1, 1, 10)[:, None]
    return prior, (x, jnp.sin(3 * x))


def smooth_loss(params, batch):
    x, y = batch
    return jnp.mean(jnp.square(mlp.apply(params, x, jnp.tanh) - y))


def outcome(prior, data, *, solver=None, loss_fn=smooth_loss, **how):
    """What steps report is differentiated as well as where they lead."""
    solver = sx.ProximalGD(0.1) if solver is None else solver
    adapted = sx.adapt(loss_fn, prior, data, solver, num_steps=HORIZON, adjoint=sx.Unroll(**how))
    return loss_fn(adapted.params, data) + jnp.sum(adapted.losses)


def assert_same(actual, expected, tolerance=1e-9):
    assert float(optax.tree.norm(expected)) > 1e-3
    assert float(optax.tree.norm(optax.tree.sub(actual, expected))) < tolerance * float(optax.tree.norm(expected))


@pytest.mark.parametrize("how", [{}, {"checkpoint": False}, {"last": 5}], ids=["checkpoint", "stored", "last"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_gradients_are_those_of_reverse_mode(x64, solver, how):
    prior, data = regression()
    gradient = jax.grad(outcome)
    mixed = gradient(prior, data, solver=solver, mixed=True, **how)
    assert_same(mixed, gradient(prior, data, solver=solver, **how))


def test_data_and_what_a_loss_closes_over_have_gradients(x64):
    prior, data = regression()

    def of_all(data, weight, labels, mixed):
        def loss_fn(params, batch):
            # Integers are closed over, too.
            return weight * smooth_loss(params, batch) + jnp.mean(labels * batch[1])

        return outcome(prior, data, loss_fn=loss_fn, mixed=mixed)

    arguments = data, jnp.asarray(0.7), jnp.arange(10)[:, None]
    mixed, plain = (jax.grad(of_all, (0, 1))(*arguments, mixed) for mixed in (True, False))
    assert_same(mixed, plain)


def test_second_derivatives_go_through(x64):
    prior, data = regression()

    def of_scale(scale, mixed):
        return outcome(jax.tree.map(lambda leaf: scale * leaf, prior), data, mixed=mixed)

    for derivative in (jax.hessian(of_scale), jax.grad(jax.grad(of_scale))):
        assert float(derivative(1.0, True)) == pytest.approx(float(derivative(1.0, False)), rel=1e-9)


@pytest.mark.parametrize("chunk_size", [None, 1])
@pytest.mark.parametrize("trainable", [None, ("w1", "b1")])
def test_learners_with_mini_batches(x64, chunk_size, trainable):
    prior, (x, y) = regression()
    tasks = sx.Task((jnp.stack([x, x]), jnp.stack([y, -y])), (jnp.stack([x, x]), jnp.stack([y, -y])))

    def sample(key, data):
        return jax.tree.map(lambda leaf: leaf[jax.random.randint(key, (4,), 0, 10)], data)

    def gradient(mixed):
        learner = sx.Learner(
            sx.Reptile(sx.Unroll(last=5, mixed=mixed)),
            sx.ProximalAdam(0.01),
            num_steps=HORIZON,
            optimiser=optax.sgd(1.0),
            variance_optimiser=optax.sgd(1.0),
            sample=sample,
            chunk_size=chunk_size,
            trainable=trainable,
        )
        return learner.gradient(smooth_loss, prior, tasks, key=jax.random.key(1))[0]

    assert_same(gradient(True), gradient(False))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_in_16_bits(dtype):
    prior, data = regression()
    prior, data = (jax.tree.map(lambda leaf: leaf.astype(dtype), tree) for tree in (prior.mean, data))
    prior = sx.Prior.create(prior, variance=0.5)

    def gradient(mixed):
        return jax.grad(lambda prior: outcome(prior, data, mixed=mixed).astype(jnp.float32))(prior).log_variance

    np.testing.assert_allclose(gradient(True), gradient(False), rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("how", [{"checkpoint": True}, {"mixed": True, "checkpoint": False}], ids=["steps", "mixed"])
def test_a_step_keeps_hardly_more_than_the_parameters(how, record_property):
    prior = sx.Prior.create(conv_net(jax.random.key(0), channels=32), variance=0.1)
    tasks = image_tasks(jax.random.key(1), 1)

    def bytes_of(num_steps, **how):
        learner = sx.Learner(
            sx.Predictive(sx.Unroll(**how)), sx.ProximalGD(0.1), num_steps=num_steps, optimiser=optax.sgd(0.1)
        )
        gradient = jax.jit(lambda prior, tasks: learner.gradient(conv_net_loss, prior, tasks)[0])
        return gradient.lower(prior, tasks).compile().memory_analysis().temp_size_in_bytes

    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(prior.mean))
    # With so few steps there are no segments.
    kept, everything = ((bytes_of(8, **each) - bytes_of(4, **each)) / 4 for each in (how, {"checkpoint": False}))
    record_property("bytes of a step", (kept, everything))
    assert kept < 4 * parameters < everything


def test_forward_mode_says_what_it_needs():
    prior, data = regression()

    def of_scale(scale, mixed):
        return outcome(jax.tree.map(lambda leaf: scale * leaf, prior), data, mixed=mixed)

    with pytest.raises(
        TypeError, match=r"Forward mode through adaptation .* needs `adjoint=Unroll\(\)`, not `mixed=True`"
    ):
        jax.jvp(lambda scale: of_scale(scale, True), (1.0,), (1.0,))
    forward = jax.jvp(lambda scale: of_scale(scale, False), (1.0,), (1.0,))[1]
    assert float(forward) == pytest.approx(float(jax.grad(of_scale)(1.0, True)), rel=1e-4)


def test_a_loss_whose_gradient_has_no_forward_mode(x64):
    """Its rule of differentiation calls a function with a rule of its own."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    @jax.custom_vjp
    def cosine(x):
        return jnp.cos(x)

    cosine.defvjp(lambda x: (jnp.cos(x), x), lambda x, c: (-c * jnp.sin(x),))
    sine.defvjp(lambda x: (jnp.sin(x), cosine(x)), lambda slope, c: (c * slope,))
    prior, data = regression()

    def gradient(activation, mixed):
        def loss_fn(params, batch):
            return jnp.mean(jnp.square(mlp.apply(params, batch[0], activation) - batch[1]))

        return jax.grad(outcome)(prior, data, loss_fn=loss_fn, mixed=mixed)

    with pytest.raises(TypeError, match="custom_vjp"):
        gradient(sine, True)
    assert_same(gradient(sine, False), gradient(jnp.sin, True))


def test_gradients_that_are_none_of_a_function_need_reverse_mode(x64):
    """Clipped on their way back: by reverse mode the derivative is that of the steps as they are taken."""

    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, slope: (jnp.clip(slope, -0.01, 0.01),))
    prior, data = regression()

    def clipping_loss(params, batch):
        return smooth_loss({**params, "w0": clipped(params["w0"]), "b0": clipped(params["b0"])}, batch)

    def of_scale(scale):
        start = jax.tree.map(lambda leaf: scale * leaf, prior)
        adapted = sx.adapt(clipping_loss, start, data, sx.ProximalGD(0.1), num_steps=HORIZON)
        return smooth_loss(adapted.params, data)

    check_grads(of_scale, (1.0,), order=1, modes=["rev"], eps=1e-6, rtol=1e-5)
