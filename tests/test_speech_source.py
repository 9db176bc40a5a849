"""Folders of recordings become a file of speech: what is mended, what is left out, and what is refused.

Pitch and phones come from packages that may not be there: their place is taken here, and they are tested at the end.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from shrinx.cli import main
from shrinx.data import speech_source
from shrinx.data.audio import decode
from shrinx.data.phonetics import phones, pitch
from shrinx.data.recording import LEVEL, MARGIN, UnusableError, read_recording
from shrinx.data.speech import HOP, NO_DIGIT, RATE, load_speech
from shrinx.data.transcripts import WORDS, recordings_in
from shrinx.runs.errors import UserError
from shrinx.tasks.speech import recordings_of


def voice(seconds=0.5, rate=48_000, loud=0.2, around=0.25):
    """A tone that swells and fades, between silences."""
    time = np.arange(round(seconds * rate)) / rate
    sound = loud * np.sin(2 * np.pi * 440 * time) * np.sin(np.pi * time / seconds) ** 0.5
    return np.pad(sound, round(around * rate))


def int16(wave):
    return np.round(wave * 32767).astype(np.int16)


FORMATS = {
    "16 bit": lambda: (48_000, int16(voice())),
    "8 bit, off centre": lambda: (48_000, np.round(voice() * 127 + 131).astype(np.uint8)),
    "32 bit": lambda: (48_000, int16(voice()).astype(np.int32) << 16),
    "float, louder than full scale": lambda: (48_000, (20 * voice()).astype(np.float32)),
    "stereo": lambda: (48_000, np.stack([int16(voice()), int16(0.5 * voice())], axis=1)),
    "44.1 kHz": lambda: (44_100, int16(voice(rate=44_100))),
    "16 kHz": lambda: (16_000, int16(voice(rate=16_000))),
}


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_become_one(tmp_path, name):
    wavfile.write(tmp_path / "a.wav", *FORMATS[name]())
    wave = read_recording(tmp_path / "a.wav")
    # Half a second, whose quiet ends may fall to the silence around it.
    assert 100 + 2 * MARGIN - 6 <= len(wave) / HOP <= 100 + 2 * MARGIN + 2
    assert np.sqrt(np.mean(wave**2)) == pytest.approx(LEVEL, rel=0.01)
    spectrum = np.abs(np.fft.rfft(wave))
    assert np.argmax(spectrum) * RATE / len(wave) == pytest.approx(440, abs=2)
    assert np.sum(spectrum**2 * (np.abs(np.arange(len(spectrum)) * RATE / len(wave) - 440) < 40)) > 0.99 * np.sum(
        spectrum**2
    )


UNUSABLE = {
    "is silent": lambda: (48_000, np.zeros(48_000, np.int16)),
    "is silent ": lambda: (48_000, np.zeros(0, np.int16)),
    "is clipped": lambda: (48_000, int16(np.clip(8 * voice(), -1, 1))),
    "holds 0.07 s of speech; 0.1 s is the least": lambda: (48_000, int16(voice(seconds=0.07))),
    "has 8000 samples a second and so nothing above 4000 Hz": lambda: (8_000, int16(voice(rate=8_000))),
    "holds values that are no numbers": lambda: (48_000, np.full(48_000, np.nan, np.float32)),
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_a_recording_that_cannot_be_used_says_why(tmp_path, reason):
    wavfile.write(tmp_path / "a.wav", *UNUSABLE[reason]())
    with pytest.raises(UnusableError, match=reason.strip()):
        read_recording(tmp_path / "a.wav")


@pytest.mark.parametrize("content", [b"", b"RIFFxxxx", b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0", b"no sound at all"])
def test_what_is_no_wav_file_says_so(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UnusableError, match="is no wav file that can be read"):
        read_recording(tmp_path / "a.wav")


@pytest.mark.parametrize("promised", [0, 0x7FFFF000, 2**32 - 1])
def test_a_recording_that_is_cut_off_says_so(tmp_path, promised):
    """But one that was written into a pipe, whose header promises all there can be, is whole."""
    path = tmp_path / "a.wav"
    wavfile.write(path, *FORMATS["16 bit"]())
    content = bytearray(path.read_bytes())
    if promised:
        content[4:8] = min(promised + 36, 2**32 - 1).to_bytes(4, "little")
        content[40:44] = promised.to_bytes(4, "little")
        path.write_bytes(content)
        assert len(read_recording(path))
    else:
        half = content[: -len(content) // 2]
        for outer in (content[4:8], (len(half) - 8).to_bytes(4, "little")):  # What holds the sound may know it or not.
            half[4:8] = outer
            path.write_bytes(half)
            with pytest.raises(UnusableError, match="is cut off: it is shorter than its header says"):
                read_recording(path)


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        wavfile.write(folder / f"{name}.wav", 16_000, int16(voice(rate=16_000)))
    return folder


def test_transcripts_are_beside_in_a_list_or_in_the_name(tmp_path):
    folder = write(tmp_path / "alice", "a", "b", "3_alice_0", "unknown")
    (folder / "a.txt").write_text("Seven!\n")
    (folder / "transcripts.csv").write_text('file,text\nb.wav,"Oh, 42"\n')
    said = {one.path.stem: (one.words, one.digit) for one in recordings_in(folder)}
    assert said == {
        "a": (("seven",), 7),
        "b": (("oh", "four", "two"), None),
        "3_alice_0": (("three",), 3),
        "unknown": ((), None),
    }
    (folder / "transcripts.csv").write_text("file,text\nc.wav,one\n")
    with pytest.raises(UserError, match=r"transcripts.csv names c.wav, which is not in"):
        recordings_in(folder)
    (folder / "transcripts.csv").write_text("a.wav,one\n")
    with pytest.raises(UserError, match="must have a first line `file,text`"):
        recordings_in(folder)


@pytest.fixture
def hearing(monkeypatch):
    """Pitch and phones without the packages that hear them."""

    def heard(wave, words):
        if "mumble" in words:
            raise UnusableError("does not sound like 'mumble'")
        quiet = np.full(MARGIN, "SIL")
        return np.concatenate([quiet, np.full(len(wave) // HOP - 2 * MARGIN, words[0].upper()), quiet])

    monkeypatch.setattr(speech_source, "need_speech", lambda: None)
    monkeypatch.setattr(speech_source, "pitch", lambda wave: np.full(len(wave) // HOP, 120, np.float16))
    monkeypatch.setattr(speech_source, "phones", heard)


def test_a_folder_becomes_a_file_that_experiments_read(tmp_path, hearing, capsys):
    write(tmp_path / "in" / "bob", "1_bob_0", "1_bob_1", "2_bob_0", "nothing", "mumble")
    write(tmp_path / "in" / "alice", "2_alice_0", "sentence")
    write(tmp_path / "in" / "carl", "1_carl_0")
    (tmp_path / "in" / "alice" / "sentence.txt").write_text("one two")
    (tmp_path / "in" / "bob" / "mumble.txt").write_text("mumble")
    (tmp_path / "in" / "speakers.json").write_text(json.dumps({"alice": {"gender": "Female"}}))
    assert main(["data", "prepare-speech", str(tmp_path / "in"), str(tmp_path / "out.npz")]) == 0
    printed = capsys.readouterr()
    assert "2 speakers, 5 utterances, 0.1 minutes; 3 left out. Experiments use 2 utterances of each" in printed.out
    assert "bob/nothing.wav has no transcript; write what is said into nothing.txt." in printed.err
    assert "bob/mumble.wav does not sound like 'mumble'." in printed.err
    assert "speaker carl has 1 usable of 2 needed utterances." in printed.err

    digits = load_speech(tmp_path / "out.npz")
    assert (digits.name, digits.gender[1]) == ({1: "alice", 2: "bob"}, "female")
    assert digits.speaker.tolist() == [1, 1, 2, 2, 2]
    assert digits.digit.tolist() == [2, NO_DIGIT, 1, 1, 2]
    assert digits.take.tolist() == [0, 0, 0, 1, 0]
    assert digits.phones == ("SIL", "ONE", "TWO")
    first = slice(digits.offsets[0], digits.offsets[1])
    np.testing.assert_allclose(
        decode(digits.samples[first].ravel()), read_recording(tmp_path / "in/alice/2_alice_0.wav"), atol=0.02
    )
    assert set(digits.phone[first].tolist()) == {0, 2}
    assert recordings_of(digits).starts.shape == (2, 2)

    assert main(["data", "prepare-speech", str(tmp_path / "in"), str(tmp_path / "out.npz")]) == 2
    assert "out.npz is there already; add --replace" in capsys.readouterr().err
    assert main(["data", "prepare-speech", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert "must end in .npz" in capsys.readouterr().err


def test_folders_called_by_numbers_keep_them(tmp_path, hearing):
    for speaker in ("07", "12"):
        write(tmp_path / "in" / speaker, f"1_{speaker}_0", f"1_{speaker}_1")
    assert speech_source.prepare_speech(tmp_path / "in", tmp_path / "out.npz").digits.speakers == (7, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "is no folder"),
        (lambda folder: folder.mkdir(), "There are no wav files in the folders of"),
        (lambda folder: write(folder / "a", "x", "y"), "No recording in .* can be used: .*x.wav has no transcript"),
        (lambda folder: write(folder / "a", "1_a_0"), "No recording in .* speaker a has 1 usable of 2 needed"),
        (lambda folder: write(folder / "a", "1_a_0").with_name("speakers.json").write_text("[1]"), "must be like"),
        (
            lambda folder: write(folder / "a", "1_a_0").with_name("speakers.json").write_text('{"b": {}}'),
            "describes 'b', for whom there is no folder",
        ),
    ],
)
def test_folders_that_hold_nothing_of_use_are_one_sentence(tmp_path, hearing, make, message):
    make(tmp_path / "in")
    with pytest.raises(UserError, match=message):
        speech_source.prepare_speech(tmp_path / "in", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_missing_packages_are_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "parselmouth", None)
    assert main(["data", "prepare-speech", str(tmp_path), str(tmp_path / "out.npz")]) == 2
    assert "parselmouth, which is missing: pip install 'shrinx[speech]'" in capsys.readouterr().err


def test_pitch_by_praat():
    pytest.importorskip("parselmouth")
    time = np.arange(RATE // 2) / RATE
    hum = sum(np.sin(2 * np.pi * 150 * k * time) / k for k in range(1, 6)).astype(np.float32) / 4
    found = pitch(np.concatenate([hum, np.zeros(RATE // 4, np.float32)]))
    assert found.shape == (150,)
    np.testing.assert_allclose(found[2:95].astype(float), 150, rtol=0.01)
    assert not found[105:].any()


def test_phones_by_pocketsphinx():
    pytest.importorskip("pocketsphinx")
    noise = (0.1 * np.random.default_rng(0).normal(size=RATE)).astype(np.float32)
    with pytest.raises(UnusableError, match="says 'xyzzyx', a word that the recogniser's dictionary lacks"):
        phones(noise, ("one", "xyzzyx"))
    with pytest.raises(UnusableError, match="does not sound like 'zero one"):
        phones(noise[: RATE // 4], WORDS)


def test_real_digits_are_heard_as_in_the_given_file():
    pytest.importorskip("parselmouth")
    pytest.importorskip("pocketsphinx")
    if not (Path(os.environ.get("SHRINX_DATA", "")) / "audiomnist16k.npz").exists():
        pytest.skip("audiomnist16k.npz is not in $SHRINX_DATA")
    digits = load_speech()
    right = voiced = frames = 0
    for index in range(0, 5000, 500):
        here = slice(digits.offsets[index], digits.offsets[index + 1])
        wave = decode(digits.samples[here].ravel())
        heard = phones(wave, (WORDS[digits.digit[index]],))
        right += np.sum(heard == np.array(digits.phones)[digits.phone[here]])
        voiced += np.sum((pitch(wave) > 0) == (digits.f0[here] > 0))
        frames += len(heard)
    assert right > 0.85 * frames
    assert voiced > 0.85 * frames
