"""Trials of given settings: read from words, trained, written down, and not repeated."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shrinx.cli import main
from shrinx.experiments import sinusoid
from shrinx.experiments.limits import check_limits
from shrinx.runs.errors import UserError
from shrinx.runs.search import score_trials
from shrinx.runs.trials import read_values

TOY = ["--num-updates", "4", "--inner-steps", "2", "--adapt-steps", "2", "--num-test-tasks", "3", "--hidden", "4"]
BASE = replace(
    sinusoid.preset_config("sigma-maml", "quick"),
    num_updates=4,
    inner_steps=2,
    adapt_steps=2,
    num_test_tasks=3,
    hidden=4,
)


pytestmark = pytest.mark.usefixtures("relaxed")


def run_try(file, *words):
    return main(["try", "sinusoid", "--algorithm", "sigma-maml", *TOY, "--out", str(file), "--values", *words])


def test_values_are_read_as_what_the_field_is():
    words = ["mean_rate=1,3e-3", "inner-steps=5,7", "solver=adam", "max_task_norm=null,2", "keep_best=true,false"]
    first, second = read_values(words, BASE, check_limits)
    assert first == {
        "mean_rate": 1.0,
        "inner_steps": 5,
        "solver": "adam",
        "max_task_norm": None,
        "keep_best": True,
    }
    assert second == {
        "mean_rate": 3e-3,
        "inner_steps": 7,
        "solver": "adam",
        "max_task_norm": 2.0,
        "keep_best": False,
    }
    assert isinstance(first["mean_rate"], float)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Nothing to try"),
        (["mean_rate"], "'mean_rate' is not FIELD=VALUE"),
        (["mean_rate="], "is not FIELD=VALUE"),
        (["rate=1"], "no field 'rate' to try values of; known: algorithm, .*mean_rate"),
        (["mean_rate=1", "mean-rate=2"], "mean_rate are given twice"),
        (["mean_rate=1,2,3", "inner_rate=1,2"], "There are 3 trials, but inner_rate=2"),
        (["inner_steps=2.5"], "inner_steps is 2 by default; '2.5' is no such value"),
        (["inner_steps=many"], "'many' is no such value"),
        (["mean_rate=true"], "'true' is no such value"),
        (["inner_steps=5,0"], "--inner-steps must be positive, got 0"),
        (["mean_rate=NaN"], "--mean-rate must be a finite number"),
    ],
)
def test_values_that_make_no_sense(words, message):
    with pytest.raises(UserError, match=message):
        read_values(words, BASE, check_limits)


def test_trials_are_scored_as_in_a_search_and_not_repeated(tmp_path, capsys):
    file = tmp_path / "trials.json"
    words = ["mean_rate=1e-3,1e-2,1e-3", "inner_steps=2,2,3"]
    assert run_try(file, *words, "--alone", "w0") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    written = json.loads(file.read_text())
    rows = written["trials"]
    assert [row["values"] for row in rows] == [
        {"mean_rate": rate, "inner_steps": steps} for rate, steps in ((1e-3, 2), (1e-2, 2), (1e-3, 3))
    ]
    assert written["command"]
    assert written["base"]["num_updates"] == 4
    expected = score_trials(
        sinusoid.setup, BASE, {"mean_rate": np.asarray([1e-3, 1e-2])}, subsets={"all": None, "w0": ("w0",)}
    )
    for index, row in enumerate(rows[:2]):
        for label in ("all", "w0"):
            assert row["scores"][label] == pytest.approx(float(expected[label][index]), rel=1e-4)
        assert list(row["variances"]) == ["b0", "b1", "b2", "w0", "w1", "w2"]
        np.testing.assert_allclose(np.log(list(row["variances"].values())), expected["log_variance"][index], rtol=1e-4)
        assert [step for step, _ in row["query_loss"]] == [1, 2, 3, 4]
    assert rows[2]["scores"] != rows[0]["scores"]

    before = file.read_bytes()
    assert run_try(file, *words, "--alone", "w0") == 0  # All known: nothing is trained, nothing written.
    assert file.read_bytes() == before
    assert "3 of 3 trials" in capsys.readouterr().err
    assert run_try(file, "mean_rate=1e-3,3e-3", "inner_steps=3", "--alone", "w0") == 0
    assert [row["values"] for row in json.loads(file.read_text())["trials"]][3:] == [
        {"mean_rate": 3e-3, "inner_steps": 3}
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"experiment": "linear"}', "holds trials of another experiment, algorithm, preset, base, alone"),
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


def test_unknown_modules_to_adapt_alone(tmp_path, capsys):
    assert run_try(tmp_path / "trials.json", "mean_rate=1e-3", "--alone", "w9") == 2
    assert "Unknown modules ['w9'] to adapt alone; known: ['b0'" in capsys.readouterr().err
