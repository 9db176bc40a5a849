"""WaveNet: equal to the library's convolutions, causal, and the same spoken sample by sample as all at once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shrinx as sx
from shrinx.models.conditioning import Conditioning
from shrinx.models.wavenet import LEVELS, Speech, WaveNet
from shrinx.models.wavenet_speak import cached_logits, speak

SIZES = {"residual_channels": 8, "skip_channels": 4, "output_channels": 6, "hop": 4}
CONDITIONING = Conditioning(num_phones=3, context=(-1, 0, 2))
TOY = WaveNet(dilations=(1, 2), conditioning=CONDITIONING, **SIZES)
MANY = WaveNet(dilations=(1, 2), conditioning=CONDITIONING, num_speakers=3, speaker_channels=5, **SIZES)


# Compiled whole: one by one, the operations of an unrolled network are compiled for longer than they run.
apply = jax.jit(WaveNet.apply, static_argnums=0)
init = jax.jit(WaveNet.init, static_argnums=0)
nll = jax.jit(WaveNet.negative_log_likelihood, static_argnums=0)


def speech(network=TOY, strings=2, frames=8, seed=0):
    keys = jax.random.split(jax.random.key(seed), 4)
    voiced = jax.random.bernoulli(keys[0], 0.5, (strings, frames))
    return Speech(
        samples=jax.random.randint(keys[1], (strings, frames * network.hop), 0, LEVELS).astype(jnp.uint8),
        f0=jnp.where(voiced, 200.0, 0.0).astype(jnp.float16),
        phones=jax.random.randint(keys[2], (strings, frames), 0, 3).astype(jnp.uint8),
        speaker=jnp.arange(strings, dtype=jnp.int32) % 3,
    )


def params_of(network, seed=1, dtype=jnp.float32):
    """All leaves random: biases that are zero would hide that one is missing."""
    params = init(network, jax.random.key(seed))
    leaves, treedef = jax.tree.flatten(params)
    noise = np.random.default_rng(seed)
    return treedef.unflatten([jnp.asarray(leaf + noise.normal(scale=0.3, size=leaf.shape), dtype) for leaf in leaves])


def test_the_default_has_the_modules_of_the_paper():
    shapes = jax.eval_shape(WaveNet().init, jax.random.key(0))
    modules = sx.by_layer(shapes)
    kinds = {name.partition("/")[2]: 0 for name in modules.names if "/" in name}
    for name in modules.names:
        if "/" in name:
            kinds[name.partition("/")[2]] += 1
    assert len(modules) == 123
    assert kinds == {"dilated": 30, "condition": 30, "residual": 29, "skip": 30}
    assert {name for name in modules.names if "/" not in name} == {"input", "input_skip", "output0", "output1"}
    assert 2.8e6 < sum(modules.sizes) < 3.5e6
    assert WaveNet().receptive_field == 3070


def test_a_table_of_speakers_adds_a_layer_to_every_block():
    alone = dataclasses.replace(MANY, num_speakers=None)
    with_table, without = (
        sx.by_layer(jax.eval_shape(network.init, jax.random.key(0))).names for network in (MANY, alone)
    )
    assert set(with_table) - set(without) == {"speaker", "block00/speaker", "block01/speaker"}


@pytest.mark.parametrize("dilation", [1, 3, 50])
def test_dilated_equals_the_librarys_convolution(x64, dilation):
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = jax.random.normal(keys[0], (2, 16, 3))
    layer = {"kernel": jax.random.normal(keys[1], (2, 3, 10)), "bias": jax.random.normal(keys[2], (10,))}

    def library(layer, inputs):
        padded = jnp.pad(inputs, ((0, 0), (dilation, 0), (0, 0)))
        layout = ("NHC", "HIO", "NHC")
        outputs = jax.lax.conv_general_dilated(
            padded, layer["kernel"], (1,), "VALID", rhs_dilation=(dilation,), dimension_numbers=layout
        )
        return outputs + layer["bias"][None, None]

    def gradients(function):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), argnums=(0, 1))(layer, inputs)

    def ours(layer, inputs):
        return dataclasses.replace(TOY, dilations=(dilation,)).dilated(layer, inputs, dilation)

    def results(function):
        return jax.jit(lambda: (function(layer, inputs), gradients(function)))()

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), results(ours), results(library))


def test_a_sample_depends_on_the_past_within_the_receptive_field_and_on_nothing_else():
    params, batch = params_of(TOY), speech(frames=10, strings=1)
    for layer in ("input_skip", "output0"):  # No unit of the output layers is off and hides a change.
        params[layer]["bias"] += 20
    place, reach = 20, TOY.receptive_field
    logits = apply(TOY, params, batch)

    def changed(index):
        samples = np.array(batch.samples)
        samples[0, index] ^= 37
        moved = apply(TOY, params, batch._replace(samples=jnp.asarray(samples)))
        return np.flatnonzero(np.any(np.asarray(moved != logits)[0], axis=-1))

    np.testing.assert_array_equal(changed(place), np.arange(place + 1, min(place + reach, 39) + 1))
    assert changed(39).size == 0


@pytest.mark.parametrize("network", [TOY, MANY], ids=["one speaker", "many"])
def test_sample_by_sample_is_the_same_as_all_at_once(network):
    params, batch = params_of(network), speech(network)
    cached = jax.jit(cached_logits, static_argnums=0)(network, params, batch)
    np.testing.assert_allclose(cached, apply(network, params, batch), atol=1e-4)


def test_speech_is_drawn_from_the_model(x64):
    """Given what was drawn, the probabilities are those of `apply`: the mean of -log p comes close to the entropy."""
    params = params_of(TOY, dtype=jnp.float64)
    batch = speech(strings=8, frames=60)
    samples = speak(TOY, params, batch.f0, batch.phones, jax.random.key(3))
    assert (samples.dtype, samples.shape) == (jnp.uint8, (8, 240))
    logits = np.asarray(apply(TOY, params, batch._replace(samples=samples)))
    log_likelihoods = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    entropy = -np.mean(np.sum(np.exp(log_likelihoods) * log_likelihoods, axis=-1))
    drawn = -np.take_along_axis(log_likelihoods, np.asarray(samples, int)[..., None], axis=-1)
    assert float(nll(TOY, params, batch._replace(samples=samples))) == pytest.approx(drawn.mean(), rel=1e-9)
    assert abs(drawn.mean() - entropy) < 4 * drawn.std() / np.sqrt(samples.size)
    cold = speak(TOY, params, batch.f0, batch.phones, jax.random.key(3), temperature=1e-6)
    np.testing.assert_array_equal(cold, np.argmax(apply(TOY, params, batch._replace(samples=cold)), axis=-1))


def test_the_table_of_speakers_matters_row_by_row():
    params, batch = params_of(MANY), speech(MANY, strings=3)
    same = Speech(*(jnp.broadcast_to(part[:1], part.shape) for part in batch))._replace(speaker=batch.speaker)
    logits = np.asarray(apply(MANY, params, same))
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    gradient = jax.jit(jax.grad(MANY.negative_log_likelihood))(
        params, same._replace(speaker=jnp.array([0, 2, 2], jnp.int32))
    )
    np.testing.assert_array_equal(np.any(np.asarray(gradient["speaker"]["table"]) != 0, axis=1), [True, False, True])


def test_weights_per_task_become_batched_products():
    tasks = [(params_of(TOY, seed), speech(seed=seed)) for seed in range(2)]
    stacked, batches = jax.tree.map(lambda *leaves: np.stack(leaves), *tasks)
    losses = jax.jit(jax.vmap(TOY.negative_log_likelihood))
    gradients = jax.jit(jax.vmap(jax.grad(TOY.negative_log_likelihood))).lower(stacked, batches).as_text()
    assert "dot_general" in gradients
    assert "convolution" not in gradients
    np.testing.assert_allclose(losses(stacked, batches), [nll(TOY, *task) for task in tasks], rtol=1e-5)


def test_bfloat16_is_close_and_keeps_the_parameters_type():
    narrow = dataclasses.replace(TOY, dtype="bfloat16")
    params, batch = init(TOY, jax.random.key(0)), speech()
    loss, gradient = jax.jit(jax.value_and_grad(narrow.negative_log_likelihood))(params, batch)
    assert loss.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(loss, nll(TOY, params, batch), rtol=2e-2)


@pytest.mark.parametrize("changes", [{"remat": True}, {"unroll": False}, {"remat": True, "unroll": False}])
def test_how_blocks_are_compiled_changes_no_gradient(changes):
    params, batch = params_of(TOY), speech()
    plain, again = (
        jax.jit(jax.grad(network.negative_log_likelihood))(params, batch)
        for network in (TOY, dataclasses.replace(TOY, **changes))
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), plain, again)


def test_context_repeats_the_outermost_frames():
    features = Conditioning(num_phones=4, context=(-2, 0)).features(
        jnp.array([[260.0, 0.0, 130.0]]), jnp.array([[3, 1, 2]])
    )
    assert features.shape == (1, 3, 12)
    np.testing.assert_allclose(features[0, :, 0], [np.log(2), np.log(2), np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(features[0, :, 6], [np.log(2), 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(features[0, :, 7], [1, 0, 1])
    np.testing.assert_array_equal(jnp.argmax(features[0, :, 8:], axis=-1), [3, 1, 2])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WaveNet(dilations=()), "at least one block"),
        (lambda: WaveNet(dilations=(0,)), "at least one block"),
        (lambda: WaveNet(num_speakers=0), "`num_speakers` must be None or at least 1"),
        (lambda: Conditioning(context=()), "one place in `context`"),
        (lambda: TOY.apply({}, speech()._replace(samples=jnp.zeros((2, 31), jnp.uint8))), "8 frames of pitch .* 31"),
        (lambda: speak(TOY, {}, jnp.zeros((1, 2)), jnp.zeros((1, 2)), jax.random.key(0), temperature=0.0), "positive"),
    ],
)
def test_bad_input_is_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
