"""The convolutional network: equal to the library's convolution with all derivatives, also with weights per task."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shrinx as sx
from shrinx.models._convolve import convolve
from shrinx.models.conv import EPSILON, ConvNet, batch_norm, max_pool

NETWORKS = {
    "pool": ConvNet((9, 8, 2), 3, num_filters=4, num_blocks=2),
    "stride": ConvNet((9, 8, 2), 3, num_filters=4, num_blocks=2, halve="stride"),
}


def library_convolve(inputs, kernel, stride=1):
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(inputs, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.zeros(()).dtype)


def batch(network, images=6, seed=1):
    return normal(seed, images, *network.image_shape), jnp.arange(images, dtype=jnp.int32) % network.num_classes


def double(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64), tree)


def hessian_vector(loss, at, direction):
    return jax.jvp(jax.grad(loss), (at,), (direction,))[1]


def assert_close(actual, expected, tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("height", "width", "channels"), [(8, 8, 1), (7, 7, 3), (8, 5, 2), (3, 4, 1), (2, 2, 2), (1, 1, 1), (9, 8, 32)]
)
def test_convolve_equals_the_librarys_with_its_derivatives(x64, stride, height, width, channels):
    inputs, kernel = normal(0, 2, height, width, channels), normal(1, 3, 3, channels, 4)
    direction = normal(2, *inputs.shape), normal(3, *kernel.shape)

    def results(convolution):
        def loss(arguments):
            return jnp.sum(jnp.sin(convolution(*arguments, stride)))

        at = (inputs, kernel)
        return convolution(inputs, kernel, stride), jax.grad(loss)(at), hessian_vector(loss, at, direction)

    compiled = jax.jit(results, static_argnums=0)
    assert_close(compiled(convolve), compiled(library_convolve), 1e-11)


@pytest.mark.parametrize("halve", NETWORKS)
def test_weights_per_task_under_vmap_equal_a_loop(x64, halve):
    network = NETWORKS[halve]
    tasks = [(double(network.init(jax.random.key(seed))), batch(network, seed=seed)) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)

    @jax.jit
    def derivatives(params, data):
        loss = functools.partial(network.cross_entropy, batch=data)
        return loss(params), jax.grad(loss)(params), hessian_vector(loss, params, params)

    together = jax.jit(jax.vmap(derivatives))(*stacked)
    for index, task in enumerate(tasks):
        assert_close(jax.tree.map(lambda leaf, i=index: leaf[i], together), derivatives(*task), 1e-11)


@pytest.mark.parametrize("halve", NETWORKS)
def test_the_network_is_the_papers(x64, halve):
    """Convolution, batch norm, ReLU, max-pooling, in that order, written with library functions."""
    network = NETWORKS[halve]
    params, (images, labels) = double(network.init(jax.random.key(0))), batch(network)
    params["norm0"] = {"scale": -params["norm0"]["scale"], "offset": params["norm0"]["offset"] + 0.3}
    hidden = images
    for block in range(network.num_blocks):
        hidden = library_convolve(hidden, params[f"conv{block}"]["kernel"], 1 if halve == "pool" else 2)
        mean, variance = (
            np.asarray(moment(hidden, axis=(0, 1, 2)))[None, None, None] for moment in (jnp.mean, jnp.var)
        )
        norm = {name: leaf[None, None, None] for name, leaf in params[f"norm{block}"].items()}
        hidden = jax.nn.relu((hidden - mean) / np.sqrt(variance + EPSILON) * norm["scale"] + norm["offset"])
        if halve == "pool":
            window = (1, 2, 2, 1)
            hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, window, window, "VALID")
    output = jax.tree.map(np.asarray, params["output"])
    logits = np.asarray(hidden).reshape(len(images), -1) @ output["kernel"] + output["bias"]
    assert_close(network.apply(params, images), logits, 1e-12)
    likelihoods = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chosen = likelihoods[np.arange(len(labels)), np.asarray(labels)]
    assert_close(network.cross_entropy(params, (images, labels)), -np.log(chosen).mean(), 1e-12)
    assert_close(network.accuracy(params, (images, labels)), (logits.argmax(1) == np.asarray(labels)).mean(), 1e-6)


@pytest.mark.parametrize(
    ("network", "features"),
    [
        (ConvNet((28, 28, 1), 20), 64),
        (ConvNet((28, 28, 1), 5, halve="stride"), 256),
        (ConvNet((84, 84, 3), 5, num_filters=32), 800),
    ],
)
def test_the_three_networks_have_the_papers_modules(network, features):
    params = jax.eval_shape(network.init, jax.random.key(0))
    names = [f"{layer}{block}" for layer, block in itertools.product(("conv", "norm"), range(4))]
    assert sx.by_layer(params).names == (*names, "output")
    assert params["output"]["kernel"].shape == (features, network.num_classes)
    data = jax.ShapeDtypeStruct((2, *network.image_shape), jnp.float32)
    assert jax.eval_shape(network.apply, params, data).shape == (2, network.num_classes)


def test_initial_scales():
    params = ConvNet((28, 28, 1), 20).init(jax.random.key(0))
    for block, inputs in enumerate((9, 576, 576, 576)):
        assert float(params[f"conv{block}"]["kernel"].std()) == pytest.approx(inputs**-0.5, rel=0.1)
        assert (params[f"norm{block}"]["scale"] == 1).all()
        assert (params[f"norm{block}"]["offset"] == 0).all()
    assert float(params["output"]["kernel"].std()) == pytest.approx(64**-0.5, rel=0.1)
    assert (params["output"]["bias"] == 0).all()


def test_batch_norm_uses_the_batchs_statistics(x64):
    inputs = 5 + 3 * normal(0, 7, 4, 5, 2)
    scale, offset = jnp.asarray([2.0, -1.0]), jnp.asarray([0.5, 1.0])
    outputs = batch_norm(inputs, scale, offset)
    variance = np.var(inputs, axis=(0, 1, 2))
    assert_close(jnp.mean(outputs, (0, 1, 2)), offset, 1e-12)
    assert_close(jnp.var(outputs, (0, 1, 2)), np.square(scale) * variance / (variance + EPSILON), 1e-12)
    assert_close(batch_norm(inputs + 100, scale, offset), outputs, 1e-10)


def test_batch_norm_of_a_constant_channel_is_finite():
    flat = jnp.full((2, 3, 3, 1), 7.0)
    gradient = jax.grad(lambda x: jnp.sum(batch_norm(x, jnp.ones(1), jnp.ones(1)) ** 2))(flat)
    assert (batch_norm(flat, jnp.ones(1), jnp.ones(1)) == 1).all()
    assert np.isfinite(gradient).all()


def test_max_pool_leaves_out_odd_borders_and_the_first_of_a_tie_gets_the_gradient():
    image = jnp.asarray([[1.0, 1, 3, 9], [1, 1, 2, 9], [4, 5, 0, 9], [5, 0, 0, 9], [8, 8, 8, 8]])[None, :, :, None]
    assert max_pool(image)[0, :, :, 0].tolist() == [[1, 9], [5, 9]]
    assert max_pool(image[:, :, :3])[0, :, :, 0].tolist() == [[1], [5]]
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(image)[0, :, :, 0]
    assert gradient.tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_who_gets_the_gradient_of_a_tie_does_not_matter_on_flat_ground(x64):
    """Strokes on a ground of zeros, and a pooling that prefers the last pixel instead of the first."""
    network = ConvNet((16, 16, 1), 3, num_filters=4)
    params = double(network.init(jax.random.key(0)))
    strokes = jnp.zeros((6, 16, 16, 1)).at[:, 5:11, 7:9].set(normal(0, 6, 6, 2, 1))
    data = (strokes, jnp.arange(6, dtype=jnp.int32) % 3)

    def last_pixel(inputs):
        return jnp.flip(max_pool(jnp.flip(inputs, (1, 2))), (1, 2))

    def gradient(pool):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shrinx.models.conv.max_pool", pool)
            return jax.jit(jax.grad(lambda params: network.cross_entropy(params, data)))(params)

    ties = jnp.zeros((1, 2, 2, 1))
    assert jax.grad(lambda x: jnp.sum(last_pixel(x)))(ties)[0, 1, 1, 0] == 1
    assert_close(gradient(max_pool), gradient(last_pixel), 1e-12)


@pytest.mark.parametrize("halve", NETWORKS)
def test_bfloat16_is_for_convolutions_only(halve):
    network = NETWORKS[halve]
    half = ConvNet(network.image_shape, 3, num_filters=4, num_blocks=2, halve=halve, dtype="bfloat16")
    params, data = half.init(jax.random.key(0)), batch(half)
    program = jax.make_jaxpr(half.cross_entropy)(params, data)
    products = [equation for equation in program.eqns if equation.primitive.name == "dot_general"]
    types = [equation.invars[0].aval.dtype for equation in products]
    assert types == [jnp.bfloat16] * 2 + [jnp.float32]
    sums = [equation for equation in program.eqns if equation.primitive.name == "reduce_sum"]
    assert {equation.invars[0].aval.dtype for equation in sums} == {jnp.dtype(jnp.float32)}
    gradient = jax.eval_shape(jax.grad(half.cross_entropy), params, data)
    logits = jax.jit(half.apply)(params, data[0])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((params, gradient, logits)))
    np.testing.assert_allclose(logits, jax.jit(network.apply)(params, data[0]), atol=0.1)


def test_it_learns():
    """Gradient descent on a handful of images ends at a training accuracy of 1; with `jnp.max` as pooling it is NaN."""
    network = ConvNet((8, 8, 1), 3, num_filters=8, num_blocks=2)
    prior = sx.Prior.create(network.init(jax.random.key(0)), variance=jnp.inf)
    data = batch(network, images=12)
    adapted = sx.adapt(network.cross_entropy, prior, data, sx.ProximalGD(0.3), num_steps=60)
    assert float(network.accuracy(prior.mean, data)) < 0.9
    assert float(network.accuracy(adapted.params, data)) == 1.0


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"halved 4 times, got \(12, 28, 1\)"):
        ConvNet((12, 28, 1), 5)
    with pytest.raises(ValueError, match="at least one class, filter and block"):
        ConvNet((28, 28, 1), 0)
    network = NETWORKS["pool"]
    with pytest.raises(ValueError, match=r"images of shape \(9, 8, 2\), got \(9, 8, 1\)"):
        network.apply(network.init(jax.random.key(0)), jnp.zeros((2, 9, 8, 1)))
