"""Numbers out of range: one sentence from the command line, before anything is computed or written."""

from itertools import product

import pytest

from shrinx.cli import main
from shrinx.experiments import EXPERIMENTS, find_experiment
from shrinx.experiments.limits import check_limits


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_presets_are_within_their_limits(name):
    experiment = find_experiment(name)
    for algorithm, preset in product(experiment.algorithms, experiment.presets):
        check_limits(experiment.config(algorithm, preset))


@pytest.mark.parametrize(
    ("command", "experiment", "option", "value", "said"),
    [
        ("run", "sinusoid", "--inner-rate", "-1", "must be positive, got -1.0"),
        ("run", "sinusoid", "--inner-rate", "nan", "must be a finite number, got nan"),
        ("run", "sinusoid", "--inner-steps", "0", "must be positive, got 0"),
        ("run", "sinusoid", "--tasks-per-update", "0", "must be positive, got 0"),
        ("run", "sinusoid", "--adapt-steps", "0", "must be positive, got 0"),
        ("run", "sinusoid", "--num-updates", "-1", "must be at least 0, got -1"),
        ("run", "sinusoid", "--last-steps", "-2", "must be at least 0, got -2"),
        ("run", "sinusoid", "--variance", "0", "must be positive, got 0.0"),
        ("run", "linear", "--decay", "1.5", "is a share of the updates, from 0 to 1, got 1.5"),
        ("run", "aug-omniglot", "--curve-steps", "-3", "must be positive, got -3"),
        ("run", "aug-omniglot-small", "--inner-rates", "0.1 -0.2", "must be positive, got -0.2"),
        ("tune", "sinusoid", "--max-task-norm", "0", "must be positive, got 0.0"),
    ],
)
def test_a_number_out_of_range_is_one_sentence(command, experiment, option, value, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([command, experiment, option, *value.split()]) == 2
    assert capsys.readouterr().err == f"shrinx: {option} {said}.\n"
    assert not list(tmp_path.iterdir())
