"""Speech: the file, the split of its speakers, and strings cut from it on the device."""

import os
import wave
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from speech_files import speech_arrays, speech_folder, tone

from shrinx.data.audio import decode, encode, write_wav
from shrinx.data.speech import HOP, load_speech, speaker_split
from shrinx.runs.errors import UserError
from shrinx.tasks.speech import (
    draw_mixed_strings,
    draw_rows,
    draw_strings,
    held_out_speakers,
    joined_strings,
    recordings_of,
    tasks_of,
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return load_speech(speech_folder(tmp_path_factory.mktemp("speech")))


@pytest.fixture(scope="module")
def recordings(digits):
    return recordings_of(digits)


def utterance(digits, speaker, take, digit):
    """Samples of one utterance, looked up the long way."""
    arrays = speech_arrays()
    here = (arrays["speaker"] == digits.speakers[speaker]) & (arrays["take"] == take) & (arrays["digit"] == digit)
    index = int(np.flatnonzero(here)[0])
    first, last = arrays["offsets"][index : index + 2] * HOP
    return arrays["audio"][first:last]


def test_the_file_is_read(digits):
    assert digits.speakers == (1, 3, 5, 7, 9, 11)
    assert digits.gender[1] == "female"
    assert digits.gender[3] == "male"
    assert digits.phones == ("SIL", "P0", "P1")
    np.testing.assert_array_equal(digits.samples[: digits.offsets[1]].ravel(), tone(0, int(digits.offsets[1]), 0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"f0": np.zeros(3, np.float16)}, "`audio` is uint8"),
        ({"offsets": np.zeros(61, np.int64)}, "utterances of at least 20 frames"),
        ({"phones": np.array(["SIL"])}, "values that `phones` does not name"),
        ({"meta": np.array("{")}, "no spoken digits"),
    ],
)
def test_foreign_files_are_one_sentence(tmp_path, changed, message):
    with pytest.raises(UserError, match=message):
        load_speech(speech_folder(tmp_path, **changed))


def test_missing_and_broken_files_say_what_to_do(tmp_path, monkeypatch):
    made = r"There is no .*audiomnist16k.npz; make it with .*audiomnist16k.npz`, or"
    with pytest.raises(UserError, match=f"{made} name another with --data-dir"):
        load_speech(tmp_path)
    monkeypatch.setenv("SHRINX_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"{made} set SHRINX_DATA"):
        load_speech()
    (tmp_path / "audiomnist16k.npz").write_bytes(b"no zip")
    with pytest.raises(UserError, match="is damaged or no spoken digits"):
        load_speech(tmp_path)


def test_speakers_are_split_by_gender(digits):
    splits = [speaker_split(digits, seed=seed, num_validation=1, num_test=3) for seed in range(5)]
    for split in splits:
        everybody = np.concatenate([split.train, split.validation, split.test])
        assert sorted(everybody) == [0, 1, 2, 3, 4, 5]
        women = [digits.gender[digits.speakers[position]] == "female" for position in split.test]
        assert sum(women) == 1
    assert len({tuple(split.test) for split in splits}) > 1
    again = speaker_split(digits, seed=0, num_validation=1, num_test=3, num_train=1)
    np.testing.assert_array_equal(again.test, splits[0].test)
    assert set(again.train) < set(splits[0].train)
    with pytest.raises(UserError, match="6 speakers cannot be split into -8 for training, 4 for validation"):
        speaker_split(digits, seed=0)


@pytest.mark.skipif(
    not (Path(os.environ.get("SHRINX_DATA", "")) / "audiomnist16k.npz").exists(), reason="needs the real data"
)
def test_the_real_speakers_are_split_as_announced():
    digits = load_speech()
    split = speaker_split(digits, seed=0)
    women = [
        sum(digits.gender[digits.speakers[position]] == "female" for position in part)
        for part in (split.train, split.validation, split.test)
    ]
    assert ([len(split.train), len(split.validation), len(split.test)], women) == ([36, 4, 10], [7, 1, 2])


def test_joined_strings_are_the_utterances_in_order_again_and_again(digits, recordings):
    order = [(take, digit) for take in range(5) for digit in range(2)]
    whole = np.concatenate([utterance(digits, 2, take, digit) for take, digit in order])
    one = recordings.of(jnp.asarray(2))
    speech = jax.jit(partial(joined_strings, num_strings=4, num_frames=70))(one)
    np.testing.assert_array_equal(speech.samples.ravel(), np.resize(whole, 4 * 70 * HOP))
    assert (speech.f0.shape, speech.phones.shape) == ((4, 70), (4, 70))
    part = jax.jit(partial(joined_strings, num_strings=1, num_frames=40))(one.between(8, 10))
    expected = np.concatenate([utterance(digits, 2, 4, digit) for digit in range(2)])[: 40 * HOP]
    np.testing.assert_array_equal(part.samples[0], expected)


def sounds(digits, speaker, takes):
    """All frames a speaker may be heard with, as a set of bytes."""
    rows = np.concatenate([utterance(digits, speaker, take, digit) for take in takes for digit in range(2)])
    return {frame.tobytes() for frame in rows.reshape(-1, HOP)}


def test_drawn_strings_are_whole_utterances_of_the_support(digits, recordings):
    one = recordings.of(jnp.asarray(1)).between(0, 4)
    draw = jax.jit(lambda key: draw_strings(key, one, num_strings=5, num_frames=60))
    speech = draw(jax.random.key(0))
    frames = np.asarray(speech.samples).reshape(-1, HOP)
    assert {frame.tobytes() for frame in frames} <= sounds(digits, 1, takes=(0, 1))
    assert not np.array_equal(speech.samples, draw(jax.random.key(1)).samples)
    # Where one utterance ends another begins, with its first frame.
    firsts = {utterance(digits, 1, take, digit)[:HOP].tobytes() for take in (0, 1) for digit in (0, 1)}
    follows = {frames[i].tobytes(): frames[i + 1].tobytes() for i in range(59)}
    last = utterance(digits, 1, 0, 0)[-HOP:].tobytes()
    ends = {utterance(digits, 1, take, digit)[-HOP:].tobytes() for take in (0, 1) for digit in (0, 1)}
    assert last in ends
    assert {after for frame, after in follows.items() if frame in ends} <= firsts


def test_mixed_strings_come_with_the_position_of_their_speaker(digits, recordings):
    speakers = jnp.array([4, 1])
    draw = jax.jit(partial(draw_mixed_strings, num_strings=6, num_frames=30))
    speech = draw(jax.random.key(0), recordings.between(0, 6), speakers)
    assert set(np.asarray(speech.speaker).tolist()) == {0, 1}
    for samples, row in zip(np.asarray(speech.samples), np.asarray(speech.speaker), strict=True):
        heard = {frame.tobytes() for frame in samples.reshape(-1, HOP)}
        assert heard <= sounds(digits, int(speakers[row]), takes=(0, 1, 2))


def test_tasks_are_different_speakers_with_utterances_apart(digits, recordings):
    rows = draw_rows(jax.random.key(0), 3, num_tasks=3)
    tasks = jax.jit(partial(tasks_of, num_support=6, num_query=2))(recordings, jnp.array([0, 2, 5])[rows])
    assert tasks.support.starts.shape == (3, 6)
    assert tasks.query.starts.shape == (3, 2)
    assert len({row.tobytes() for row in np.asarray(tasks.support.samples)}) == 3
    everyone = jax.jit(partial(held_out_speakers, num_support=4, num_query=2, num_strings=2, num_frames=20))
    test = everyone(recordings, jnp.array([5, 2]))
    first = np.concatenate([utterance(digits, 5, 4, digit) for digit in range(2)])[: 40 * HOP]
    np.testing.assert_array_equal(test.query.samples[0].ravel(), first)
    with pytest.raises(ValueError, match="4 different speakers cannot be drawn from 3"):
        draw_rows(jax.random.key(0), 3, num_tasks=4)
    with pytest.raises(ValueError, match="Each speaker has 10 utterances; 9 for the support"):
        held_out_speakers(recordings, jnp.array([5]), num_support=9, num_query=2, num_strings=2, num_frames=20)


def test_waves_survive_mu_law_and_files(tmp_path):
    waves = np.linspace(-1.2, 1.2, 101)
    assert np.abs(decode(encode(waves)) - np.clip(waves, -1, 1)).max() < 0.025
    levels = encode(waves)
    write_wav(tmp_path / "out.wav", levels)
    with wave.open(str(tmp_path / "out.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (1, 2, 16000, 101)
        stored = np.frombuffer(file.readframes(101), "<i2") / 32767
    np.testing.assert_allclose(stored, decode(levels), atol=1e-4)
