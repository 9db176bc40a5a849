"""Tasks of speech: a task is a speaker, and its data are recordings that strings are cut from inside `jit`.

`Recordings` of all speakers stay on the device as bytes. They are an argument of every source and must not become a
constant of a compiled program: hand them through `eqx.filter_jit`.

A string is a piece of fixed length cut from utterances joined end to end. Spoken digits begin and end with
a little silence, so that nothing needs to go between them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float16, Int, Int32, PRNGKeyArray, UInt8

from .._task import Task
from ..data.speech import HOP, SHORTEST, SpokenDigits
from ..models.wavenet import Speech


class Recordings(NamedTuple):
    """Utterances of one speaker, or of several along a leading axis.

    Utterance u of a speaker is frames `starts[u]` to `starts[u] + lengths[u]`; frames after the last utterance are
    padding, and so that all speakers have equally many, utterances beyond the fewest are left out.
    """

    samples: UInt8[Array, "*speakers frames hop"]
    f0: Float16[Array, "*speakers frames"]
    phones: UInt8[Array, "*speakers frames"]
    starts: Int32[Array, "*speakers utterances"]
    lengths: Int32[Array, "*speakers utterances"]
    digits: Int32[Array, "*speakers utterances"]

    def between(self, first: int, last: int) -> "Recordings":
        """The same with utterances `first` to `last` only."""
        rows = slice(first, last)
        return self._replace(
            starts=self.starts[..., rows], lengths=self.lengths[..., rows], digits=self.digits[..., rows]
        )

    def of(self, speakers: Int[Array, "*chosen"]) -> "Recordings":
        """Some of the speakers."""
        return Recordings(*(part[speakers] for part in self))


def recordings_of(digits: SpokenDigits) -> Recordings:
    """All speakers in the order of `digits.speakers`; utterances by take and digit, so that any ten hold all digits."""
    count = min(np.bincount(digits.speaker)[list(digits.speakers)])
    by_speaker = []
    for speaker in digits.speakers:
        utterances = np.flatnonzero(digits.speaker == speaker)
        order = np.lexsort((digits.digit[utterances], digits.take[utterances]))
        by_speaker.append(utterances[order][:count].tolist())
    offsets = digits.offsets.tolist()
    lengths = np.array([[offsets[u + 1] - offsets[u] for u in utterances] for utterances in by_speaker])
    num_frames = int(lengths.sum(axis=1).max())
    samples = np.zeros((len(by_speaker), num_frames, HOP), np.uint8)
    f0 = np.zeros((len(by_speaker), num_frames), np.float16)
    phones = np.zeros((len(by_speaker), num_frames), np.uint8)
    for row, utterances in enumerate(by_speaker):
        frames = np.concatenate([np.arange(offsets[u], offsets[u + 1]) for u in utterances])
        samples[row, : len(frames)] = digits.samples[frames]
        f0[row, : len(frames)] = digits.f0[frames]
        phones[row, : len(frames)] = digits.phone[frames]
    starts = np.cumsum(lengths, axis=1) - lengths
    return Recordings(
        jnp.asarray(samples),
        jnp.asarray(f0),
        jnp.asarray(phones),
        jnp.asarray(starts, jnp.int32),
        jnp.asarray(lengths, jnp.int32),
        jnp.asarray(digits.digit[np.array(by_speaker)], jnp.int32),
    )


def draw_rows(key: PRNGKeyArray, count: int, num_tasks: int) -> Int[Array, " tasks"]:
    """Different ones of so many speakers."""
    if num_tasks > count:
        raise ValueError(f"{num_tasks} different speakers cannot be drawn from {count}.")
    return jax.lax.top_k(jax.random.uniform(key, (count,)), num_tasks)[1]


def tasks_of(recordings: Recordings, speakers: Int[Array, " tasks"], *, num_support: int, num_query: int) -> Task:
    """A task for each speaker: the first `num_support` and the last `num_query` utterances.

    Draw mini-batches of both with `draw_strings`.
    """
    support, query = _split(recordings.of(speakers), num_support, num_query)
    return Task(support=support, query=query)


def held_out_speakers(
    recordings: Recordings,
    speakers: Int[Array, " speakers"],
    *,
    num_support: int,
    num_query: int,
    num_strings: int,
    num_frames: int,
) -> Task:
    """Every speaker once; the query utterances are joined in order and cut into strings, ready to be scored."""
    support, query = _split(recordings.of(speakers), num_support, num_query)
    strings = jax.vmap(lambda one: joined_strings(one, num_strings=num_strings, num_frames=num_frames))(query)
    return Task(support=support, query=strings)


def draw_strings(key: PRNGKeyArray, recordings: Recordings, *, num_strings: int, num_frames: int) -> Speech:
    """A mini-batch of one speaker: strings of random utterances, beginning anywhere in the first."""

    def frames(key: PRNGKeyArray) -> Array:
        return _random_frames(key, recordings.starts, recordings.lengths, num_frames)

    return _read(recordings, jax.vmap(frames)(jax.random.split(key, num_strings)))


def draw_mixed_strings(
    key: PRNGKeyArray,
    recordings: Recordings,
    speakers: Int[Array, " speakers"],
    *,
    num_strings: int,
    num_frames: int,
) -> Speech:
    """A mini-batch of all speakers mixed: every string is of one, whose position among `speakers` comes with it."""
    speaker_key, key = jax.random.split(key)
    rows = jax.random.randint(speaker_key, (num_strings,), 0, len(speakers), jnp.int32)
    chosen = speakers[rows]

    def frames(key: PRNGKeyArray, starts: Array, lengths: Array) -> Array:
        return _random_frames(key, starts, lengths, num_frames)

    keys = jax.random.split(key, num_strings)
    source = jax.vmap(frames)(keys, recordings.starts[chosen], recordings.lengths[chosen])
    # Not `recordings.of(chosen)`: that would copy everything these speakers have said.
    parts = (part[chosen[:, None], source] for part in (recordings.samples, recordings.f0, recordings.phones))
    samples, f0, phones = parts
    return Speech(samples.reshape(num_strings, -1), f0, phones, rows)


def joined_strings(recordings: Recordings, *, num_strings: int, num_frames: int) -> Speech:
    """All utterances of one speaker in order, cut into strings; after the last comes the first again."""
    ends = jnp.cumsum(recordings.lengths)
    positions = jnp.arange(num_strings * num_frames, dtype=jnp.int32).reshape(num_strings, num_frames) % ends[-1]
    return _read(recordings, _frames_at(positions, recordings.starts, recordings.lengths))


def _split(recordings: Recordings, num_support: int, num_query: int) -> tuple[Recordings, Recordings]:
    count = recordings.starts.shape[-1]
    if min(num_support, num_query) < 1 or num_support + num_query > count:
        raise ValueError(
            f"Each speaker has {count} utterances; {num_support} for the support set and {num_query} for the query set "
            "must be at least one each and not more in all."
        )
    return recordings.between(0, num_support), recordings.between(count - num_query, count)


def _random_frames(key: PRNGKeyArray, starts: Array, lengths: Array, num_frames: int) -> Int[Array, " frames"]:
    utterance_key, begin_key = jax.random.split(key)
    enough = 1 + -(-num_frames // SHORTEST)
    chosen = jax.random.randint(utterance_key, (enough,), 0, len(starts))
    begin = jax.random.randint(begin_key, (), 0, lengths[chosen[0]])
    return _frames_at(begin + jnp.arange(num_frames, dtype=begin.dtype), starts[chosen], lengths[chosen])


def _frames_at(positions: Int[Array, "*shape"], starts: Array, lengths: Array) -> Int[Array, "*shape"]:
    """Where to find the frame that is at each position when the utterances are joined."""
    ends = jnp.cumsum(lengths)
    which = jnp.searchsorted(ends, positions, side="right")
    return starts[which] + positions - (ends - lengths)[which]


def _read(recordings: Recordings, frames: Int[Array, "strings frames"]) -> Speech:
    samples = recordings.samples[frames].reshape(len(frames), -1)
    nobody = jnp.zeros(len(frames), jnp.int32)
    return Speech(samples, recordings.f0[frames], recordings.phones[frames], nobody)
