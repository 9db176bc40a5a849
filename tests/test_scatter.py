"""The scatter of learned variances, from studies with known ones."""

import optuna
import pytest
from optuna.trial import create_trial

from shrinx.cli import main

# Score (an error: less is better), variance of w0, variance of b0; a plain algorithm has no variances to speak of.
TRIALS = [(0.1, 9.0, 1.0), (0.2, 5.0, 0.1), (0.3, 1.0, 2.0), (0.4, None, None)]


@pytest.fixture
def tune(tmp_path):
    """The command that looks at the study, with further options."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(study_name="sinusoid-sigma-maml", storage=storage)
    for value, first, second in TRIALS:
        study.add_trial(create_trial(value=value, user_attrs={"variances": {"w0": first, "b0": second}}))

    def run(*options):
        command = ["tune", "sinusoid", "--algorithm", "sigma-maml", "--storage", storage, "--trials", "0"]
        return main([*command, "--figure", str(tmp_path / "figure.svg"), *options])

    return run


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "The variance of w0 is above that of b0 in 2 of 3 trials."),
        (["--least", "0.2"], "The variance of w0 is above that of b0 in 2 of 2 trials."),
    ],
)
def test_trials_are_drawn_and_counted(tmp_path, capsys, tune, options, sentence):
    assert tune("--scatter", "w0", "b0", *options) == 0
    assert sentence in capsys.readouterr().out
    figure = (tmp_path / "figure.svg").read_text()
    assert sentence in figure
    assert "variance of w0" in figure
    assert "variance of b0" in figure


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scatter", "w0", "b7"], "no modules ['b7']; known: w0, b0"),
        (["--scatter", "w0", "b0", "--least", "0.01"], "No trial of sinusoid-sigma-maml has learned variances"),
        (["--trials", "-1"], "--trials must be at least 0"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(tmp_path, capsys, tune, options, message):
    assert tune(*options) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not (tmp_path / "figure.svg").exists()
