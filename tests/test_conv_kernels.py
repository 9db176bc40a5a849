"""The network by GPU kernels, which Python interprets here: equal to XLA's with all derivatives, under every vmap."""

import functools
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import shrinx as sx
from shrinx.models._gpu import block, choose, first, plain, rules
from shrinx.models._gpu.pixels import Grid, Tiling
from shrinx.models.conv import ConvNet, xla_block

NETWORK = ConvNet((8, 9, 1), 3, num_filters=16, num_blocks=2, gpu_kernels="interpret")
ON_GPU = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")


def normal(seed, *shape, dtype="float32"):
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def batch(*leading, network=NETWORK, seed=1):
    labels = jnp.arange(3, dtype=jnp.int32) % network.num_classes
    return normal(seed, *leading, 3, *network.image_shape), jnp.broadcast_to(labels, (*leading, 3))


def params_of(network=NETWORK, seed=0):
    """With scales and offsets that matter."""
    params = network.init(jax.random.key(seed))
    return jax.tree.map(lambda leaf: leaf + 0.1 * normal(seed + 1, *leaf.shape), params)


def assert_close(actual, expected, tolerance=1e-5):
    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(jnp.max(jnp.abs(b)))))

    jax.tree.map(check, actual, expected)


def assert_kernels_equal_xla(function, *arguments, network=NETWORK, tolerance=1e-5):
    """`function(network, *arguments)`; and that it uses kernels at all."""
    traced = jax.jit(functools.partial(function, network)).trace(*arguments)
    assert "pallas_call" in str(traced.jaxpr)
    expected = jax.jit(functools.partial(function, replace(network, gpu_kernels="off")))(*arguments)
    assert_close(traced.lower().compile()(*arguments), expected, tolerance)


def gradient_step(network, params, data):
    gradient = jax.grad(network.cross_entropy)(params, data)
    return jax.tree.map(lambda leaf, slope: leaf - 0.1 * slope, params, gradient)


# Kernels one by one.

GRID = Grid(3, 7, 6)
KERNELS = {
    "convolve": (block, ((126, 16), (3, 3, 16, 32))),
    "convolve_transposed": (block, ((126, 32), (3, 3, 16, 32))),
    "kernel_gradient": (block, ((126, 16), (126, 32))),
    "normalise_pool": (block, ((126, 16), (16,), (16,))),
    "pool_gradient_sums": (block, ((126, 16), (27, 16), (16,), (16,), (16,), (16,))),
    "pool_gradient": (block, ((126, 16), (27, 16), (16,), (16,), (16,), (16,))),
    "patch_gram": (first, ((126, 3),)),
    "first_block": (first, ((126, 3), (32, 16), (16,), (16,))),
    "first_block_gradient": (first, ((126, 3), (32, 16), (27, 16), (16,), (16,))),
}


@pytest.mark.parametrize("tiling", [Tiling(16, taps=1, splits=3), Tiling(128, taps=9, splits=1)], ids=["many", "one"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_its_plain_function(name, tiling):
    module, shapes = KERNELS[name]
    arrays = [normal(seed, *shape) for seed, shape in enumerate(shapes)]
    actual = getattr(module, name)(*arrays, grid=GRID, tiling=replace(tiling, interpret=True))
    assert_close(actual, getattr(plain, name)(*arrays, grid=GRID))


# Whole networks.


def test_images_in_colour():
    network = replace(NETWORK, image_shape=(5, 4, 3), num_blocks=1)

    def both(network, params, data):
        return jax.value_and_grad(network.cross_entropy)(params, data)

    assert_kernels_equal_xla(both, params_of(network), batch(network=network), network=network)


def test_bfloat16_is_no_worse_than_xlas():
    network = replace(NETWORK, dtype="bfloat16")
    params, data = params_of(), batch()
    wide = jax.jit(jax.grad(replace(NETWORK, gpu_kernels="off").cross_entropy))(params, data)

    def error(network):
        gradient = jax.jit(jax.grad(network.cross_entropy))(params, data)
        squares = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)) / jnp.sum(jnp.square(b)), gradient, wide)
        return float(sum(jax.tree.leaves(squares))) ** 0.5

    assert 1e-4 < error(network) < 1.5 * error(replace(network, gpu_kernels="off"))


def test_value_and_gradient_and_their_derivatives():
    """With the Hessian-vector product; the derivative of the gradient is forward mode over kernels."""

    def all_of_them(network, params, data):
        both = jax.value_and_grad(functools.partial(network.cross_entropy, batch=data))
        return jax.jvp(both, (params,), (params,))

    assert_kernels_equal_xla(all_of_them, params_of(), batch(), tolerance=3e-5)


def test_gradient_through_steps_in_a_scan():
    """Also with respect to the images of the steps, which the steps themselves do not differentiate."""

    def slope(network, params, batches):
        def loss(params, images):
            def step(params, data):
                return gradient_step(network, params, data), None

            moved, _ = jax.lax.scan(step, params, (images, batches[1]))
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(moved))

        return jax.grad(loss, argnums=(0, 1))(params, batches[0])

    assert_kernels_equal_xla(slope, params_of(), batch(2), tolerance=1e-4)


def test_gradient_of_the_images():
    def slopes(network, params, data):
        def loss(params, images):
            return network.cross_entropy(params, (images, data[1]))

        return jax.grad(loss, argnums=(0, 1))(params, data[0])

    assert_kernels_equal_xla(slopes, params_of(), batch())


VMAPS = {
    "weights per task, seeds share them": (lambda step: jax.vmap(jax.vmap(step), (None, 0)), (2, 2)),
    "weights per task, images shared": (lambda step: jax.vmap(step, (0, None)), ()),
}


@pytest.mark.parametrize(("over", "leading"), VMAPS.values(), ids=VMAPS)
def test_vmap(over, leading):
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), params_of(seed=0), params_of(seed=5))

    def steps(network, params, data):
        return over(functools.partial(gradient_step, network))(params, data)

    assert_kernels_equal_xla(steps, params, batch(*leading))


@pytest.mark.slow
def test_seeds_by_tasks_with_adaptation():
    """Starting points per seed, data per task, and the gradient through the last of the steps."""
    priors = jax.vmap(lambda key: sx.Prior.create(NETWORK.init(key)))(jax.random.split(jax.random.key(0), 2))

    def slopes(network, priors, data):
        def loss(prior, data):
            adapt = functools.partial(sx.adapt, network.cross_entropy, prior, data, sx.ProximalGD(0.1), num_steps=2)
            return network.cross_entropy(adapt(adjoint=sx.Unroll(last=1)).params, data)

        return jax.vmap(jax.vmap(jax.grad(loss), (None, 0)))(priors, data)

    assert_kernels_equal_xla(slopes, priors, batch(2, 2), tolerance=1e-4)


@ON_GPU
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("num_filters", choose.TRUSTED)
def test_a_real_gpu(num_filters, channels):
    """Compiled, not interpreted: no further from float32 than XLA is in bfloat16."""
    network = ConvNet((28, 28, channels), 3, num_filters=num_filters, dtype="bfloat16")
    params, data = params_of(network), batch(network=network)
    assert "pallas_call" in str(jax.make_jaxpr(network.cross_entropy)(params, data))

    @functools.partial(jax.jit, static_argnums=0)
    def both(network):
        loss, slope = jax.value_and_grad(network.cross_entropy)(params, data)
        return loss, ravel_pytree(slope)[0]

    xla = replace(network, gpu_kernels="off")
    loss, slope = both(replace(xla, dtype="float32"))
    (loss_off, slope_off), (xla_loss_off, xla_slope_off) = (
        (abs(float(near - loss)), float(jnp.linalg.norm(direction - slope) / jnp.linalg.norm(slope)))
        for near, direction in (both(network), both(xla))
    )
    assert loss_off < 1.5 * xla_loss_off + 0.02
    assert slope_off < 1.5 * xla_slope_off + 0.02


# When they are used.


def chosen(mode: choose.Mode = "auto", *, dtype="bfloat16", channels=1, filters=32, kernel_dtype="float32"):
    """The name of the block that is used, for 'XLA' None."""
    inputs = jax.ShapeDtypeStruct((2, 4, 4, channels), dtype)
    kernel = jax.ShapeDtypeStruct((3, 3, channels, filters), kernel_dtype)
    used: list = []

    def look(inputs, kernel):
        used.append(choose.kernel_block(mode, inputs, kernel))
        return inputs

    jax.eval_shape(look, inputs, kernel)
    return used[0] and used[0].func


def on(monkeypatch, platform="gpu", capability="9.0"):
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [device])


def test_blocks_on_a_gpu(monkeypatch):
    on(monkeypatch)
    assert chosen() is rules.first_block
    assert chosen(channels=3) is rules.first_block
    assert chosen(channels=64, filters=64) is rules.block


UNFIT = {
    "off": {"mode": "off"},
    "float32": {"dtype": "float32"},
    "channels": {"channels": 8},
    "filters": {"filters": 48},
    "filters that are not trusted": {"filters": 16},
    "parameters": {"kernel_dtype": "bfloat16"},
}


@pytest.mark.parametrize("arguments", UNFIT.values(), ids=UNFIT)
def test_xla_on_a_gpu(monkeypatch, arguments):
    on(monkeypatch)
    assert chosen(**arguments) is None


@pytest.mark.parametrize(("platform", "capability"), [("cpu", None), ("gpu", "7.5"), ("gpu", "gfx90a"), ("tpu", None)])
def test_xla_elsewhere(monkeypatch, platform, capability):
    on(monkeypatch, platform, capability)
    assert chosen() is None


def test_xla_where_another_device_is_the_default(monkeypatch):
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        on(monkeypatch)
        assert chosen() is None


def test_xla_in_double_precision(monkeypatch, x64):
    on(monkeypatch)
    assert chosen() is None


def test_xla_without_pallas(monkeypatch):
    on(monkeypatch)
    monkeypatch.setitem(sys.modules, "shrinx.models._gpu.rules", None)
    monkeypatch.delattr("shrinx.models._gpu.rules")
    assert chosen() is None


def test_strides_are_left_to_xla():
    network = replace(NETWORK, halve="stride")
    program = jax.make_jaxpr(network.cross_entropy)(params_of(network), batch(network=network))
    assert "pallas_call" not in str(program)


def test_the_first_block_is_xlas_where_images_are_differentiated():
    images, kernel = normal(0, 2, 4, 4, 1), normal(1, 3, 3, 1, 16)
    compute = functools.partial(rules.first_block, rules.tilings_for(images, interpret=True))
    arguments = images, kernel, jnp.ones(16), jnp.zeros(16)

    def slope(function):
        return jax.jit(jax.grad(lambda *arguments: jnp.sum(jnp.sin(function(*arguments))), argnums=(0, 1)))(*arguments)

    assert_close(slope(compute), slope(functools.partial(xla_block, "pool")))
