"""What held-out speakers are asked to say, and when their voices have adapted enough to say it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from .._types import Params
from ..data.speech import SILENCE
from ..models.wavenet import SILENCE as MIDDLE
from ..models.wavenet import WaveNet
from ..models.wavenet_speak import speak
from ..tasks.speech import Recordings


class Script(NamedTuple):
    """What voices are asked to say: pitch and phones of real strings, which end after `lengths` frames."""

    samples: UInt8[np.ndarray, "voices strings samples"]
    f0: Float[np.ndarray, "voices strings frames"]
    phones: UInt8[np.ndarray, "voices strings frames"]
    lengths: Int[np.ndarray, "voices strings"]
    digits: Int[np.ndarray, "voices strings digits"]


def script_of(recordings: Recordings, *, num_strings: int, num_digits: int) -> Script:
    """Strings of `num_digits` of each speaker's utterances, the same for all methods, no utterance twice."""
    samples, f0, phones, starts, lengths, digits = (np.asarray(part) for part in recordings)
    voices, utterances = starts.shape
    if num_strings * num_digits > utterances:
        raise ValueError(f"{num_strings} strings of {num_digits} need more than the {utterances} utterances there are.")
    chosen = np.random.RandomState(0).permutation(utterances)[: num_strings * num_digits].reshape(num_strings, -1)
    durations = lengths[:, chosen].sum(axis=-1)
    shape = (voices, num_strings, int(durations.max()))
    script = Script(
        samples=np.full((*shape, samples.shape[-1]), MIDDLE, np.uint8),
        f0=np.zeros(shape, np.float16),
        phones=np.full(shape, SILENCE, np.uint8),
        lengths=durations,
        digits=digits[:, chosen],
    )
    for voice in range(voices):
        for string, members in enumerate(chosen):
            spans = [np.arange(starts[voice, u], starts[voice, u] + lengths[voice, u]) for u in members]
            frames = np.concatenate(spans)
            for ours, theirs in ((script.samples, samples), (script.f0, f0), (script.phones, phones)):
                ours[voice, string, : len(frames)] = theirs[voice, frames]
    return script._replace(samples=script.samples.reshape(voices, num_strings, -1))


def speak_script(
    network: WaveNet, params: Params, script: Script, key: PRNGKeyArray
) -> UInt8[np.ndarray, "voices strings samples"]:
    """Every voice (a leading axis of `params`) says its strings, all side by side."""

    def one(params: Params, f0: Array, phones: Array, key: PRNGKeyArray) -> Array:
        return speak(network, params, f0, phones, key)

    keys = jax.random.split(key, len(script.f0))
    return np.asarray(jax.vmap(one)(params, jnp.asarray(script.f0), jnp.asarray(script.phones), keys))


def grid(last: int, count: int = 40) -> tuple[int, ...]:
    """Steps that curves are drawn at: 0, and the rest evenly spaced on a log scale up to `last`."""
    return tuple(sorted({0, *(np.geomspace(1, last, count).astype(int).tolist() if last else ())}))


def best_step(steps: Sequence[int], curves: Float[np.ndarray, "voices steps"]) -> int:
    """Where the mean over (validation) speakers is lowest, of the steps at which none has diverged: the early stop."""
    means = np.mean(curves, axis=0)
    return int(steps[int(np.argmin(np.where(np.isnan(means), np.inf, means)))])
