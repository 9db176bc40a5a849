"""WaveNet, sample by sample: what the blocks will need again is kept, so that a sample costs one step of each layer.

A block reads its own input of `dilation` samples ago. All blocks' past inputs live in one array of rings. What they
contribute is known before the sample is, and so are the conditions: both are one batched product, and only the present
goes through the blocks one by one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped, UInt8

from .._types import Params
from .wavenet import SILENCE, Samples, Speech, WaveNet

Choose = Callable[[Any, Float[Array, "strings levels"]], tuple[Int[Array, " strings"], Any]]
"""From something per sample (a random number, the true sample) and the logits to the sample and what to keep of it."""


def speak(
    network: WaveNet,
    params: Params,
    f0: Shaped[Array, "strings frames"],
    phones: Shaped[Array, "strings frames"],
    key: PRNGKeyArray,
    *,
    speaker: Int[Array, " strings"] | None = None,
    temperature: float = 1.0,
) -> UInt8[Array, "strings samples"]:
    """Generate strings of speech side by side, as mu-law samples; compiled once per network and shapes.

    **Arguments:** `network` and its `params`; pitch and phones of every frame; `key`; `speaker`, rows of the table of
    speakers, the first by default; `temperature`, 1 draws from the model, less is less noisy.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be positive, got {temperature}.")
    speaker = jnp.zeros(len(f0), jnp.int32) if speaker is None else speaker
    return _speak(network, params, f0, phones, key, speaker, jnp.asarray(temperature, jnp.float32))


@partial(jax.jit, static_argnums=0)
def _speak(network, params, f0, phones, key, speaker, temperature):
    def choose(uniform: Array, logits: Array) -> tuple[Array, Array]:
        # One random number per sample: what the cumulative distribution reaches it with.
        cumulative = jnp.cumsum(jax.nn.softmax(logits.astype(jnp.float32) / temperature), axis=-1)
        sample = jnp.sum(cumulative < uniform[:, None], axis=-1, dtype=jnp.int32)
        sample = jnp.minimum(sample, logits.shape[-1] - 1)
        return sample, sample.astype(jnp.uint8)

    strings, frames = f0.shape
    uniforms = jax.random.uniform(key, (frames, network.hop, strings), jnp.float32)
    return _scan(network, params, f0, phones, speaker, uniforms, choose).T


def cached_logits(network: WaveNet, params: Params, speech: Speech) -> Float[Array, "strings samples levels"]:
    """`network.apply` by the path that `speak` takes: the true samples are fed back instead of drawn ones."""

    def choose(true: Array, logits: Array) -> tuple[Array, Array]:
        return true, logits

    strings, frames = speech.f0.shape
    true = speech.samples.astype(jnp.int32).reshape(strings, frames, network.hop).transpose(1, 2, 0)
    logits = _scan(network, params, speech.f0, speech.phones, speech.speaker, true, choose)
    return logits.transpose(1, 0, 2)


def _scan(network: WaveNet, params: Params, f0: Array, phones: Samples, speaker: Array, given: Any, choose: Choose):
    """What `choose` keeps of every sample, `[samples, ...]`; `given` has leading axes of frames and samples in them."""
    dtype = network.compute_dtype(params)
    blocks = [params[name] for name in network.block_names]
    pasts = jnp.stack([block["dilated"]["kernel"][0] for block in blocks]).astype(dtype)
    skips = jnp.concatenate([block["skip"]["kernel"] for block in blocks]).astype(dtype)
    skip_bias = jnp.sum(jnp.stack([block["skip"]["bias"] for block in blocks]), axis=0)
    biases = jnp.stack([block["dilated"]["bias"] for block in blocks]).astype(dtype)
    # [frames, blocks, strings, gates]
    told = network.conditions(params, f0, phones, speaker).transpose(2, 0, 1, 3) + biases[None, :, None]
    dilations = np.asarray(network.dilations, np.int32)
    starts = jnp.asarray(np.cumsum(dilations, dtype=np.int32) - dilations)
    embedding = (params["input"]["kernel"] + params["input"]["bias"][None]).astype(dtype)

    def sample_step(told: Array, carry: tuple[Array, Array, Array], given: Any) -> tuple[Any, Any]:
        memory, before, time = carry
        # Row `start + time % dilation` of the memory holds the block's input of `dilation` samples ago.
        rows = starts + time % dilations
        known = told + jnp.einsum("bsi,bio->bso", memory[rows], pasts)
        hidden = embedding[before]
        skip = network.dense(params["input_skip"], hidden)
        inputs, gated = [], []
        for index, block in enumerate(blocks):
            inputs.append(hidden)
            present = hidden @ block["dilated"]["kernel"][1].astype(dtype)
            gated.append(network.gate(present[:, None], known[index][:, None])[:, 0])
            if "residual" in block:
                hidden = hidden + network.dense(block["residual"], gated[-1])
        # The skip outputs of all blocks are one product, summed in it.
        summed = jnp.matmul(jnp.concatenate(gated, axis=-1), skips, preferred_element_type=skip_bias.dtype)
        logits = network.output(params, skip.astype(skip_bias.dtype) + summed + skip_bias[None])
        sample, kept = choose(given, logits)
        return (memory.at[rows].set(jnp.stack(inputs), unique_indices=True), sample, time + 1), kept

    def frame_step(carry: Any, frame: tuple[Array, Any]) -> tuple[Any, Any]:
        return jax.lax.scan(partial(sample_step, frame[0]), carry, frame[1])

    memory = jnp.zeros((sum(network.dilations), len(f0), network.residual_channels), dtype)
    start = (memory, jnp.full(len(f0), SILENCE, jnp.int32), jnp.zeros((), jnp.int32))
    kept = jax.lax.scan(frame_step, start, (told, given))[1]
    return kept.reshape(-1, *kept.shape[2:])
