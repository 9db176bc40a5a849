"""Trials of given settings: trained as in a search, written down with where they are from, and not repeated."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shrinx.cli import main
from shrinx.experiments import sinusoid
from shrinx.runs.search import score_trials

pytestmark = pytest.mark.usefixtures("relaxed")

SIZES = {"num_updates": 4, "inner_steps": 2, "adapt_steps": 2, "num_test_tasks": 3, "hidden": 4}
TOY = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
BASE = replace(sinusoid.preset_config("sigma-maml", "quick"), **SIZES)


def run_try(file, *words, more=()):
    command = ["try", "sinusoid", "--algorithm", "sigma-maml", *TOY, "--out", str(file), *more]
    return main([*command, *(["--values", *words] if words else [])])


def read(file):
    return json.loads(file.read_text())


def values_of(file):
    return [row["values"] for row in read(file)["trials"]]


def test_trials_are_scored_as_in_a_search_and_not_repeated(tmp_path, capsys):
    file, alone = tmp_path / "trials.json", ["--alone", "w0"]
    words = ["mean_rate=1e-3,1e-2,1e-3", "inner_steps=2,2,3"]
    assert run_try(file, *words, more=alone) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[:1]] == ["all"]
    assert len(lines) == 4
    rows = read(file)["trials"]
    pairs = ((1e-3, 2), (1e-2, 2), (1e-3, 3))
    assert values_of(file) == [{"mean_rate": rate, "inner_steps": steps} for rate, steps in pairs]
    assert read(file)["base"]["num_updates"] == 4
    expected = score_trials(
        sinusoid.setup, BASE, {"mean_rate": np.asarray([1e-3, 1e-2])}, subsets={"all": None, "w0": ("w0",)}
    )
    for index, row in enumerate(rows[:2]):
        for label in ("all", "w0"):
            assert row["scores"][label] == pytest.approx(float(expected[label][index]), rel=1e-4)
        assert list(row["variances"]) == ["b0", "b1", "b2", "w0", "w1", "w2"]
        np.testing.assert_allclose(np.log(list(row["variances"].values())), expected["log_variance"][index], rtol=1e-4)
        assert [step for step, _ in row["query_loss"]] == [4]
    assert rows[2]["scores"] != rows[0]["scores"]

    before = file.read_bytes()
    assert run_try(file, *words, more=alone) == 0  # All known: nothing is trained, nothing written.
    assert file.read_bytes() == before
    assert "3 of 3 trials" in capsys.readouterr().err
    assert run_try(file, "mean_rate=1e-3,3e-3,3e-3", "inner_steps=3", more=alone) == 0
    assert values_of(file)[3:] == [{"mean_rate": 3e-3, "inner_steps": 3}]
    written = read(file)
    assert [row["call"] for row in written["trials"]] == [0, 0, 0, 1]
    assert len(written["calls"]) == 2
    assert {"command", "commit", "date", "device"} <= set(written["calls"][0])


def test_no_number_is_a_setting_too(tmp_path):
    """Not one of an array, in which it would be NaN."""
    file = tmp_path / "trials.json"
    assert run_try(file, "max_task_norm=none,0.5") == 0
    none, some = read(file)["trials"]
    assert none["values"] == {"max_task_norm": None}
    expected = score_trials(
        sinusoid.setup, replace(BASE, max_task_norm=None), {"mean_rate": np.asarray([BASE.mean_rate])}
    )
    assert none["scores"]["all"] == pytest.approx(float(expected["all"][0]), rel=1e-4)
    assert some["scores"]["all"] is not None


def test_an_interrupted_search_goes_on(tmp_path, capsys, monkeypatch):
    file, words = tmp_path / "trials.json", ("mean_rate=1e-3,2e-3,3e-3",)
    from shrinx.runs import trials

    def interrupted(*args, **options):
        if trained:
            raise KeyboardInterrupt
        trained.append(True)
        return score_trials(*args, **options)

    trained = []
    with monkeypatch.context() as patch:
        patch.setattr(trials, "score_trials", interrupted)
        assert run_try(file, *words, more=["--batch", "2"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert [values["mean_rate"] for values in values_of(file)] == [1e-3, 2e-3]
    assert run_try(file, *words, more=["--batch", "2"]) == 0
    assert [values["mean_rate"] for values in values_of(file)] == [1e-3, 2e-3, 3e-3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"experiment": "linear"}', "holds no trials"),
        ('{"trials": [], "calls": [], "base": {"num_updates": 9}, "alone": []}', "num_updates 9 there, 4 here"),
        ("[]", "holds no JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_files_of_others_are_left_alone(tmp_path, capsys, content, message):
    file = tmp_path / "trials.json"
    file.write_text(content)
    assert run_try(file, "mean_rate=1e-3") == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert file.read_text() == content


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ((), (), "Nothing to try"),
        (("mean_rate=1e-3",), ("--alone", "w9"), "Unknown modules ['w9'] to adapt alone; known: ['b0'"),
        (("mean_rate=1e-3",), ("--batch", "0"), "--batch must be at least 1"),
        (("mean_rate=1e-3",), ("--values", "inner_rate=1"), "behind one --values"),
        (("mean_rate=1e-3",), ("--variance", "inf"), "--variance must be a finite number"),
        (("cg_steps=1", "settle=0"), (), "settle"),
    ],
)
def test_slips_are_found_before_anything_is_trained(tmp_path, capsys, words, more, message):
    assert run_try(tmp_path / "trials.json", *words, more=more) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_found_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    from shrinx.runs import trials

    monkeypatch.setattr(trials, "score_trials", None)
    (tmp_path / "file").write_text("")
    assert run_try(tmp_path / "file" / "trials.json", "mean_rate=1e-3") == 2
    assert "Cannot read or write" in capsys.readouterr().err
