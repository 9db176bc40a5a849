"""Studies of `shrinx tune`: what is only looked at is not made, and what cannot be opened is one sentence."""

from dataclasses import replace

import pytest
from optuna.trial import create_trial

from shrinx.cli import main
from shrinx.experiments import aug_omniglot, sinusoid
from shrinx.runs.errors import UserError
from shrinx.runs.studies import Range, existing_study, open_study

BASE = sinusoid.preset_config("sigma-maml", "quick")
SPACE = {"mean_rate": Range(1e-3, 1e-1)}
OTHER = {"inner_rate": Range(1e-3, 1e-1)}


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path / 'tune.db'}"


def opened(storage, base=BASE, space=SPACE, seed=0):
    return open_study("study", storage, base, space, seed=seed, lower_is_better=True)


def test_looking_makes_nothing(tmp_path, storage, capsys):
    with pytest.raises(UserError, match=r"'study' in .* holds no trials yet: add some with --trials"):
        existing_study("study", storage)
    assert main(["tune", "sinusoid", "--trials", "0", "--storage", storage]) == 2
    assert "holds no trials yet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    opened(storage).add_trial(create_trial(value=0.5))
    assert existing_study("study", storage).best_value == 0.5
    with pytest.raises(UserError, match=r"'another' in .* holds no trials yet"):
        existing_study("another", storage)


def test_trials_of_a_study_have_its_settings(storage):
    opened(storage, replace(BASE, inner_steps=7))  # Before its first trial, too: another worker may be about to add it.
    opened(storage, replace(BASE, inner_steps=7, mean_rate=0.5, seed=3), seed=3)
    with pytest.raises(UserError, match=r"'study' in .* searches another space; name another study"):
        opened(storage, replace(BASE, inner_steps=7), OTHER)
    with pytest.raises(UserError, match=r"'study' was begun with other settings .*inner_steps"):
        opened(storage, replace(BASE, inner_steps=8))


@pytest.mark.parametrize("options", ["", "?timeout=20"])
def test_addresses_of_files_may_have_options(tmp_path, storage, options):
    with pytest.raises(UserError, match="holds no trials yet"):
        existing_study("study", storage + options)
    assert not list(tmp_path.iterdir())
    opened(storage + "?timeout=20").add_trial(create_trial(value=0.5))
    assert existing_study("study", storage + "?timeout=20").best_value == 0.5


def test_a_study_draws_other_trials_when_it_has_some(storage):
    def draw():
        study = opened(storage)
        trial = study.ask()
        rate = trial.suggest_float("mean_rate", 1e-3, 1e-1, log=True)
        study.tell(trial, 1.0)
        return rate

    assert len({draw() for _ in range(3)}) == 3


@pytest.mark.parametrize("storage", ["sqlite:///nowhere/tune.db", "tune.db", "nonsense://x/y"])
def test_a_storage_that_cannot_be_opened_is_one_sentence(tmp_path, monkeypatch, capsys, storage):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "sinusoid", "--trials", "1", "--storage", storage]) == 2
    error = capsys.readouterr().err.strip()
    assert f"Cannot open the storage '{storage}' (" in error
    assert "a file is named as sqlite:///tune.db" in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--figure", "x.svg"], ["--least", "0.5"]])
def test_a_figure_needs_modules_to_draw(capsys, option):
    assert main(["tune", "sinusoid", "--trials", "0", *option]) == 2
    assert "add it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("algorithm", "last_steps", "searched"),
    [
        ("sigma-reptile", 5, False),
        ("sigma-reptile", 0, True),
        ("sigma-imaml", 5, True),
        ("imaml", 0, True),
        ("reptile", 0, False),
    ],
)
def test_damping_is_searched_where_a_system_is_solved(algorithm, last_steps, searched):
    config = replace(aug_omniglot.preset_config(algorithm, "large"), last_steps=last_steps)
    assert ("damping" in aug_omniglot.search_space(config)) is searched
