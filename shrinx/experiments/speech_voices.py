"""Held-out speakers: adapt to each, see how well their other utterances are predicted on the way, and speak."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, UInt8

from .._packing import Packing
from .._prior import Prior
from .._problem import make_problem
from .._solver import AbstractSolver
from .._task import Task
from .._tree import tree_where
from .._types import Params, SampleFn
from ..data.speech import SILENCE
from ..models.wavenet import SILENCE as MIDDLE
from ..models.wavenet import Speech, WaveNet
from ..models.wavenet_speak import speak
from ..tasks.speech import Recordings


@eqx.filter_jit
def adapt_voices(
    network: WaveNet,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    keys: Key[Array, " voices"],
    *,
    steps: tuple[int, ...],
    stop: Int[Array, ""],
    sample: SampleFn,
    trainable: tuple[str, ...] | None = None,
) -> tuple[Params, Float[Array, "voices steps"]]:
    """Adapt to all tasks side by side, in one pass.

    **Returns:** the parameters after `stop`, one of `steps`, one set per voice, and the negative log-likelihood of the
    query strings after each of them.
    """
    loss_fn = network.negative_log_likelihood
    assert tasks.query is not None
    if steps[-1] == 0:
        everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(keys), *leaf.shape)), prior.mean)
        return everyone, jax.vmap(loss_fn)(everyone, tasks.query)[:, None]

    packing = Packing(prior)
    packed, loss_of_packed = packing.pack_prior(prior), packing.loss_fn(loss_fn)

    def one(support: Recordings, query: Speech, key: PRNGKeyArray) -> tuple[Params, Array]:
        problem = make_problem(
            loss_of_packed,
            packed,
            support,
            solver,
            num_steps=steps[-1],
            key=key,
            sample=sample,
            trainable=trainable,
        )

        def see(kept: Params, step: Array, params: Params) -> tuple[Params, Array]:
            return tree_where(step == stop, params, kept), loss_of_packed(params, query)

        kept, curve = problem.visit(packed, jnp.asarray(steps, jnp.int32), see, packed.mean)
        return packing.unpack(kept), curve

    return jax.vmap(one)(tasks.support, tasks.query, keys)


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
