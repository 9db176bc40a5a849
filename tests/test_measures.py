"""Measures of speech: their arithmetic here, the packages behind them where they are installed."""

import json

import numpy as np
import pytest
from speech_files import tone

from shrinx.data.audio import decode, encode
from shrinx.measures.__main__ import main
from shrinx.measures.intelligibility import digit_accuracy, heard_digits
from shrinx.measures.judge import judge, read_voices
from shrinx.measures.naturalness import predicted_mos
from shrinx.measures.similarity import bounds, d_vectors, similarity


def write_run(path, **methods):
    """Two speakers with two strings each; a method's strings are real ones, or others."""
    path.mkdir()
    folder = path / "voices"
    folder.mkdir()
    samples = np.stack([[tone(2 * speaker + string, 4, string) for string in range(2)] for speaker in range(2)])
    common = {"lengths": np.array([[4, 3], [4, 4]]), "digits": np.arange(8).reshape(2, 2, 2)}
    np.savez(folder / "reference.npz", samples=samples, speakers=np.array([7, 3]), **common)
    for method, order in methods.items():
        for row, speaker in enumerate(order):
            part = {name: values[[row]] for name, values in common.items()}
            np.savez(folder / f"{method}-spoken-test{row:02d}.npz", samples=samples[[row]], speakers=[speaker], **part)
    return path


def test_voices_are_read_in_the_order_of_the_real_ones_and_cut_to_length(tmp_path):
    spoken, digits = read_voices(write_run(tmp_path / "run", whole=(7, 3), half=(7,)))
    assert set(spoken) == {"real", "whole"}
    assert [[len(wave) for wave in strings] for strings in spoken["whole"]] == [[320, 240], [320, 320]]
    np.testing.assert_array_equal(spoken["whole"][1][0], spoken["real"][1][0])
    assert digits[1] == [(4, 5), (6, 7)]


def test_similarity_has_a_ceiling_and_a_floor():
    random = np.random.default_rng(0)
    centres = np.eye(256)[:3]
    real = [centre + 0.02 * random.normal(size=(4, 256)) for centre in centres]
    same, other = bounds(real)
    assert (same.shape, other.shape) == ((12,), (24,))
    assert same.min() > 0.8 > 0.3 > other.max()
    assert similarity(real[0], real[0]).shape == (4,)
    with pytest.raises(ValueError, match="two speakers with two strings"):
        bounds(real[:1])


@pytest.mark.parametrize(
    ("heard", "accuracy"),
    [((3, 1, 4, 1, 5), 1.0), ((3, 1, 4, 1), 0.8), ((3, 1, 9, 4, 1, 5), 0.8), ((3, 7, 4, 1, 5), 0.8), ((), 0.0)],
)
def test_digits_wrong_missing_and_additional_count(heard, accuracy):
    assert digit_accuracy([heard], [(3, 1, 4, 1, 5)]) == pytest.approx(accuracy)


def test_errors_are_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert f"There is no {tmp_path / 'voices'}; name the folder of a speech run" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert f"There is no {tmp_path / 'nowhere'}; name the folder of a speech run" in capsys.readouterr().err


def test_numbers_that_are_none_are_shown_and_kept(tmp_path, capsys, monkeypatch):
    silence = {"digit-accuracy": lambda each, digits: {"all": [np.array([np.nan]), np.array([1.0])]}}
    monkeypatch.setattr("shrinx.measures.judge.MEASURES", silence)
    run = write_run(tmp_path / "run", all=(7, 3))
    assert main([str(run), "--only", "digit-accuracy"]) == 0
    assert capsys.readouterr().out.split() == ["digit-accuracy", "all", "none", "±", "none"]
    assert json.loads((run / "measures.json").read_text())["digit-accuracy"]["all"]["values"] == [None, 1.0]


def test_what_was_measured_before_stays(tmp_path, capsys, monkeypatch):
    def interrupted(each, digits):
        raise KeyboardInterrupt

    levels = {"loudness": lambda each, digits: each(lambda strings, said: np.array([wave.std() for wave in strings]))}
    monkeypatch.setattr("shrinx.measures.judge.MEASURES", levels | {"never": interrupted})
    monkeypatch.setattr("shrinx.measures.__main__.MEASURES", levels | {"never": interrupted})
    run = write_run(tmp_path / "run", all=(7, 3))
    (run / "measures.json").write_text('{"similarity": {"all": {"mean": 0.5}}}')
    assert main([str(run)]) == 130
    assert "finished measures are in" in capsys.readouterr().err
    kept = json.loads((run / "measures.json").read_text())
    assert set(kept) == {"similarity", "loudness"}
    assert kept["similarity"] == {"all": {"mean": 0.5}}
    assert kept["loudness"]["all"] == kept["loudness"]["real"]

    (run / "measures.json").write_text("half a fi")
    assert main([str(run), "--only", "loudness"]) == 0
    assert set(json.loads((run / "measures.json").read_text())) == {"loudness"}


def test_every_speaker_of_every_method_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("shrinx.measures.judge.MEASURES", {"one": lambda each, digits: each(lambda *_: np.ones(1))})
    reports = []
    run = write_run(tmp_path / "run", all=(7, 3))
    dict(judge(run, ["one", "one"], lambda done, total: reports.append((done, total))))
    assert sorted(set(reports)) == [(done, 8) for done in range(9)]


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pocketsphinx", None)
    assert main([str(write_run(tmp_path / "run", all=(7, 3))), "--only", "digit-accuracy"]) == 2
    assert "pip install 'shrinx[speech-metrics]'" in capsys.readouterr().err


def noise(seconds, seed=0):
    return decode(encode(0.1 * np.random.default_rng(seed).normal(size=int(16_000 * seconds))))


@pytest.mark.filterwarnings("ignore")
def test_with_resemblyzer():
    pytest.importorskip("resemblyzer")
    vectors = d_vectors([noise(3), noise(3, seed=1)])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_with_distillmos():
    pytest.importorskip("distillmos")
    scores = predicted_mos([noise(2)])
    assert 0.5 < scores[0] < 2.5


def test_with_pocketsphinx(tmp_path):
    pytest.importorskip("pocketsphinx")
    assert all(0 <= digit <= 9 for digit in heard_digits([noise(1)], 2)[0])
    scores = dict(judge(write_run(tmp_path / "run", all=(7, 3)), ["digit-accuracy"]))["digit-accuracy"]
    assert scores["real"]["values"] == scores["all"]["values"]
