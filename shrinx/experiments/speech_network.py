"""The WaveNet of a speech run, with and without a table of speakers, and what a finished run leaves for banks."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .._modules import by_layer
from .._prior import Prior
from ..data.prosody import mean_prosody, prosody_of
from ..data.speech import load_speech, speaker_split
from ..models.conditioning import Conditioning
from ..models.wavenet import WaveNet
from ..runs.model import load_prior


def network_of(config: Any, *, num_phones: int, num_train: int) -> WaveNet:
    """As the run trains it."""
    return WaveNet(
        dilations=config.cycles * tuple(2**power for power in range(config.blocks_per_cycle)),
        residual_channels=config.residual_channels,
        skip_channels=config.skip_channels,
        output_channels=config.output_channels,
        conditioning=Conditioning(num_phones),
        num_speakers=num_train if config.algorithm.startswith("sea") else None,
        dtype=config.dtype,
        unroll=config.unroll,
        remat=config.remat,
    )


def for_a_new_speaker(network: WaveNet, prior: Prior) -> tuple[WaveNet, Prior]:
    """A table of speakers shrinks to one row, their mean: where the new speaker's embedding starts from."""
    if network.num_speakers is None:
        return network, prior
    mean = {**prior.mean, "speaker": {"table": jnp.mean(prior.mean["speaker"]["table"], axis=0, keepdims=True)}}
    return replace(network, num_speakers=1), Prior.create(mean, modules=by_layer(mean), variance=math.inf)


def learned(config: Any, run: Path, result: dict[str, Any]) -> tuple[Prior, dict[str, Any]]:
    """For a bank of voices: the prior of a new speaker, and what speaking needs besides.

    Reads the data the run was trained on: where the run found it, or, on another machine, where data lives there.
    """
    there = config.data_dir is not None and Path(config.data_dir).expanduser().exists()
    digits = load_speech(config.data_dir if there else None)
    split = speaker_split(
        digits, seed=config.seed, num_validation=config.num_validation_speakers, num_test=config.num_test_tasks
    )
    network = network_of(config, num_phones=len(digits.phones), num_train=len(split.train))
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    prior = load_prior(run, Prior.create(params, modules=by_layer(params), variance=math.inf))
    usual = mean_prosody([prosody_of(digits, digits.speakers[row]) for row in split.train.tolist()])
    steps = next(iter(result["speech"]["stops"].values()))
    voices = {"phones": list(digits.phones), "prosody": usual.as_lists(), "steps": steps}
    return for_a_new_speaker(network, prior)[1], {"voices": voices}
