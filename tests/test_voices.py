"""Voices: from a finished speech run to a bank, from recordings to a voice in it, and from digits to sound."""

import re
import shutil
import wave
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.io import wavfile
from speech_files import HOP, RATE, speech_arrays, tone

import shrinx as sx
from shrinx import cli_voices
from shrinx.bank import TaskReport
from shrinx.cli import main
from shrinx.data import speech_source
from shrinx.data.audio import decode, write_wav
from shrinx.data.phonetics import NO_PHONE
from shrinx.data.prosody import Prosody, mean_prosody, prosody_of
from shrinx.data.speech import load_speech, spoken_digits
from shrinx.data.speech_source import read_voice
from shrinx.experiments import find_experiment
from shrinx.experiments.speech_network import network_of
from shrinx.runs.files import write_json
from shrinx.runs.folder import Request
from shrinx.runs.model import save_prior
from shrinx.tasks.speech import joined_strings, recordings_of
from shrinx.voices import VoiceModel, enrolment, say, script_of_digits, script_of_recording, speaking

SPOKEN = {"phones": np.array(["SIL", "T", "UW"])}
"""The digit 2 is all that toy networks can say."""
SELECTED = ("block00/condition", "output1")


def toy_arrays(**changed):
    arrays = speech_arrays(num_speakers=6)
    # The first half of a word is T, without pitch, the second UW.
    phone, f0 = arrays["phone"].copy(), arrays["f0"].copy()
    for index, (first, last) in enumerate(zip(arrays["offsets"][:-1], arrays["offsets"][1:], strict=True)):
        phone[first:last] = [0] * 4 + [1] * 6 + [2] * (last - first - 14) + [0] * 4
        f0[first + 10 : last - 4] = 100 + 10 * int(arrays["speaker"][index])
    return {**arrays, "phone": phone, "f0": f0, **SPOKEN, **changed}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run's folder as a finished run leaves it, the data it was trained on, and recordings."""
    folder = tmp_path_factory.mktemp("voices")
    np.savez(folder / "speech.npz", **toy_arrays())
    config = replace(
        find_experiment("speech").config("sigma-reptile", "quick"),
        data_dir=str(folder / "speech.npz"),
        num_test_tasks=1,
        num_validation_speakers=1,
        num_frames=5,
        blocks_per_cycle=1,
        residual_channels=4,
        inner_rate=1e-2,
    )
    network = network_of(config, num_phones=3, num_train=4)
    prior = sx.Prior.create(network.init(jax.random.key(0)), variance=1e3)
    save_prior(folder / "run", 1, prior)
    write_json(folder / "run" / "config.json", Request("speech", "sigma-reptile", "quick", 1, config).as_json())
    modules = [{"name": name, "selected": name in SELECTED} for name in prior.modules.names]
    write_json(folder / "run" / "result.json", {"modules": modules, "speech": {"stops": {"all, 80 utterances": 20}}})
    (folder / "alice").mkdir()
    for take in range(2):
        wavfile.write(folder / "alice" / f"2_alice_{take}.wav", RATE, decode(tone(2, 60, take)))
    assert main(["bank", "create", str(folder / "bank"), "--run", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy of all that, which the commands are typed in."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def hearing(monkeypatch):
    """Pitch and phones without the packages that hear them."""

    def phones(wave, words):
        names = np.full(len(wave) // HOP, NO_PHONE, dtype="<U4")
        names[5:20], names[20:-5] = "T", "UW" if words[-1] == "two" else "HH"
        return names

    def pitch(wave):
        return np.where(np.arange(len(wave) // HOP) >= 20, 200, 0).astype(np.float16)

    for place in (speech_source, speaking):
        monkeypatch.setattr(place, "need_speech", lambda: None)
        monkeypatch.setattr(place, "phones", phones)
        monkeypatch.setattr(place, "pitch", pitch)


def heard(path):
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return file.readframes(file.getnframes())


def test_from_a_run_to_speech(folder, hearing, capsys):
    assert main(["adapt", "--base", "bank", "--task", "alice", "--data", "alice"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"alice: loss \d\.\d+ after 20 steps; try `shrinx say`.", printed.out)
    assert "alice: 2 utterances, 1 s." in printed.err
    assert re.search(r"alice: steps .* 20/20 ", printed.err)
    assert "alice: that is little; a voice needs some 10 s" in printed.err

    bank = sx.Bank.open("bank")
    assert bank.selected == SELECTED
    own = recordings_of(spoken_digits(read_voice(folder / "alice").arrays)).of(jnp.asarray(0))
    speech = joined_strings(own, num_strings=2, num_frames=50)
    loss_fn = jax.jit(VoiceModel.of(bank).network.negative_log_likelihood)
    assert loss_fn(bank.params("alice"), speech) < loss_fn(bank.prior.mean, speech) - 0.1
    assert np.exp(bank.about("alice")["middle"]) == pytest.approx(200, rel=1e-2)

    # A second voice, that of nobody, which speaks as alice does.
    bank.put("nobody", bank.prior.mean)
    bank.describe("nobody", bank.about("alice"))
    for voice, out in (("alice", "a.wav"), ("alice", "b.wav"), ("nobody", "c.wav")):
        assert main(["say", "--bank", "bank", "--voice", voice, "--digits", "2", out]) == 0
    assert "a.wav: 0." in capsys.readouterr().out
    assert heard("a.wav") == heard("b.wav") != heard("c.wav")
    script = script_of_digits(bank, "alice", "2")
    assert len(heard("a.wav")) == 2 * HOP * len(script.f0)

    # What a voice speaks by goes with it.
    bank.rename("alice", "alicia")
    bank.pack()
    write_wav(folder / "d.wav", say(bank, "alicia", script))
    assert heard("d.wav") == heard("b.wav")
    assert main(["bank", "verify", "bank"]) == 0


def test_an_interrupted_enrolment_leaves_the_bank_as_it_was(folder, hearing, monkeypatch, capsys):
    steps = []

    @contextmanager
    def watched(label, **options):
        def report(done, total):
            steps.append(done)
            if label == "alice: steps" and done > 1:
                # What Ctrl-C becomes; the signal itself is ignored in the background jobs of some shells.
                raise KeyboardInterrupt

        yield report

    monkeypatch.setattr(cli_voices, "bar", watched)
    sx.Bank.open("bank").put("alice", sx.Bank.open("bank").prior.mean)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["adapt", "--base", "bank", "--task", "alice", "--data", "alice", "--replace"]) == 130
    assert capsys.readouterr().err.endswith("shrinx: interrupted.\n")
    assert 1 < steps[-1] < 20
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_recording_is_copied_at_the_voices_own_pitch(folder, hearing):
    bank = sx.Bank.open("bank")
    bank.put("low", bank.prior.mean)
    usual = VoiceModel.of(bank).usual
    bank.describe("low", replace(usual, middle=np.array(np.log(100), np.float32)).as_arrays())
    script = script_of_recording(bank, "low", "2", folder / "alice" / "2_alice_0.wav")
    assert len(script.f0) == len(script.phones) == 60
    assert script.phones[[0, 10, 30]].tolist() == [0, 1, 2]
    np.testing.assert_allclose(script.f0[20:].astype(float), 100, rtol=1e-2)


def test_the_speaker_of_a_file_is_enrolled(folder, monkeypatch):
    enrolled = {}

    def enrol(bank, name, digits, **options):
        enrolled[name] = digits
        return TaskReport((name,), *np.ones((5, 1)))

    monkeypatch.setattr(enrolment, "enrol", enrol)
    command = ["adapt", "--base", "bank", "--task", "bob", "carol", "--data", "speech.npz", "--speaker", "5", "3"]
    assert main(command) == 0
    arrays = toy_arrays()
    assert {name: digits.speakers for name, digits in enrolled.items()} == {"bob": (5,), "carol": (3,)}
    there = np.flatnonzero(arrays["speaker"] == 5)
    first, last = arrays["offsets"][there[3] : there[3] + 2]
    digits = enrolled["bob"]
    own = slice(digits.offsets[3], digits.offsets[4])
    np.testing.assert_array_equal(digits.samples[own].ravel(), arrays["audio"][first * HOP : last * HOP])
    np.testing.assert_array_equal(digits.f0[own], arrays["f0"][first:last])
    np.testing.assert_array_equal(digits.phone[own], arrays["phone"][first:last])
    assert digits.take.tolist() == arrays["take"][there].tolist()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_voice_has_the_variances_that_the_run_had_for_as_many_utterances(folder, monkeypatch, scaled):
    asked = {}

    def adapt_task(bank, *_, **options):
        asked.update(options)
        return TaskReport(("bob",), *np.ones((5, 1)))

    monkeypatch.setattr(enrolment, "adapt_task", adapt_task)
    bank = sx.Bank.open("bank")
    ours = VoiceModel.of(bank)
    ours = replace(ours, config=replace(ours.config, scale_variances=scaled, num_support=20))
    monkeypatch.setattr(VoiceModel, "of", lambda bank: ours)
    digits = enrolment.only(load_speech("speech.npz"), "5", Path("speech.npz"))
    enrolment.enrol(bank, "bob", digits)
    assert asked["variance_factor"] == (len(digits.take) / 20 if scaled else 1.0)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bank create more --run run --posterior diagonal", "Banks of speech keep no posteriors"),
        ("adapt --base bank --task a --data speech.npz", "speech.npz holds 6 speakers: name one for every task"),
        ("adapt --base bank --task a --data speech.npz --speaker 2", "There is no speaker '2' in speech.npz; known: 1"),
        ("adapt --base bank --task a b --data alice", "alice is a folder, which holds one speaker"),
        ("adapt --base bank --task a --data run/model", "There are no wav files in run/model"),
        ("adapt --base bank --task a --data nowhere", "nowhere does not exist; name a folder of wav files"),
        ("adapt --base bank --task a --data run/config.json", "is neither a folder of wav files nor a file of speech"),
        ("adapt --base bank --task a --data foreign.npz", "foreign.npz is damaged or no spoken digits"),
        ("adapt --base bank --task a --data other.npz --speaker 1", "The network was never told the phone 'HH'"),
        ("adapt --base bank --task a --data one.npz --max-steps 0", "`max_steps` must be at least 1, got 0"),
        ("say --bank bank --voice a --digits 2 a.wav", "There is no task 'a' in bank; known: 'mute'"),
        ("say --bank bank --voice mute --digits 2 a.wav", "does not know how 'mute' speaks: enrol the voice"),
        ("say --bank bank --voice mute --digits 2x a.wav", "Voices say digits, such as 31415, not '2x'"),
        ("say --bank bank --voice mute --digits 3 a.wav", "The network was never told the phone 'IY'"),
        (
            "say --bank bank --voice mute --digits 2 alice/2_alice_0.wav",
            "2_alice_0.wav is there already; name another",
        ),
        ("say --bank run --voice mute --digits 2 a.wav", "There is no bank in run"),
        ("say --bank bank --voice mute --digits 2 a.mp3", "a.mp3 must end in .wav, which is what is written"),
    ],
)
def test_one_sentence_for_every_mistake(folder, hearing, capsys, command, message):
    np.savez("foreign.npz", a=np.ones(3))
    np.savez("one.npz", **{**toy_arrays(), "speaker": np.ones(60, np.uint8)})
    np.savez("other.npz", **toy_arrays(phones=np.array(["SIL", "HH", "UW"])))
    bank = sx.Bank.open("bank")
    bank.put("mute", bank.prior.mean)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.splitlines()[-1].startswith("shrinx: ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_prosody_is_that_of_the_speaker():
    digits = spoken_digits(toy_arrays())
    slow = prosody_of(digits, 5)
    assert slow.duration[:2].tolist() == [4, 6]
    np.testing.assert_allclose(np.exp(slow.pitch[2]), 150, rtol=1e-3)
    assert np.isnan(slow.pitch[1])
    assert slow.voiced.tolist() == [0, 0, 1]
    script = slow.script([(1, 2), (2,)])
    assert script.phones[:5].tolist() == [0] * 4 + [1]
    long = round(float(slow.duration[2]))
    assert len(script.phones) == 4 * 4 + 6 + 2 * long
    assert ((script.f0 > 0) == (script.phones == 2)).all()
    np.testing.assert_allclose(script.f0[script.f0 > 0].astype(float), 150, rtol=0.01)


def test_pitch_falls_over_a_word_as_it_did():
    arrays = toy_arrays()
    for first, last in zip(arrays["offsets"][:-1], arrays["offsets"][1:], strict=True):
        place = np.linspace(-0.5, 0.5, last - first - 8)[6:]
        arrays["f0"][first + 10 : last - 4] = 120 * np.exp(-0.3 * place)
    prosody = prosody_of(spoken_digits(arrays), 1)
    assert prosody.fall < -0.1
    f0 = prosody.script([(1, 2)]).f0
    voiced = f0[f0 > 0].astype(float)
    assert voiced[0] > 1.05 * voiced[-1]


def test_phones_never_heard_are_said_as_others_say_them():
    def made(duration, middle):
        pitch = np.full(3, middle)
        return Prosody.of({"duration": duration, "pitch": pitch, "voiced": [0, 0, 1], "middle": middle, "fall": -0.1})

    usual = mean_prosody([made([4, 6, 10], 5.0), made([4, 10, 10], 5.0), made([4, np.nan, 10], 5.0)])
    assert usual.duration.tolist() == [4, 8, 10]
    own = made([8, np.nan, 20], 4.0)
    own = replace(own, pitch=np.array([4, np.nan, 4], np.float32))
    filled = own.filled(usual)
    assert filled.duration.tolist() == [8, 16, 20]
    assert filled.pitch.tolist() == [4, 4, 4]
    assert Prosody.of(own.as_lists()).as_lists() == own.as_lists()
    assert own.as_lists()["duration"] == [8, None, 20]


def test_what_describes_a_task_stays_with_it(tmp_path):
    prior = sx.Prior.create({"a": jnp.ones(2)}, variance=1.0)
    bank = sx.Bank.create(tmp_path / "bank", prior, "a", compression="int8")
    bank.put("x", {"a": jnp.array([2.0, 3.0])})
    assert bank.about("x") == {}
    bank.describe("x", {"note": np.array([1.0, 2.0], np.float32)})
    bank.describe("x", {"other": np.array(3.0, np.float32)})
    bank.rename("x", "y")
    bank.pack()
    assert set(bank.about("y")) == {"other"}
    assert bank.about("y")["other"] == 3
    np.testing.assert_allclose(bank.params("y")["a"], [2, 3], rtol=1e-2)
    assert bank.verify() == ()
    bank.put("y", {"a": jnp.ones(2)})
    assert bank.about("y") == {}
