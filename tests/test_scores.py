"""Held-out scores are kept set by set, and progress is told to people and to logs."""

import io
import itertools
import json

import numpy as np
import pytest
from rich.console import Console

from shrinx.cli import main
from shrinx.runs import meta
from shrinx.runs.meta import curves
from shrinx.runs.progress import meter
from shrinx.runs.scores import score_sets

MASKS = {"all": np.ones((2, 3), bool), "only/a": np.eye(3, dtype=bool)[:2], "none": np.zeros((2, 3), bool)}

PRIORS = {"mean": np.arange(3.0)}


class Scorer:
    """Scores that say which call they are from; interrupted at one of them."""

    def __init__(self, interrupted=None):
        self.calls, self.interrupted = 0, interrupted

    def __call__(self, mask):
        if self.calls == self.interrupted:
            raise KeyboardInterrupt
        self.calls += 1
        return np.full((2, 4, 5), float(mask.sum()))


def test_interrupted_scoring_goes_on_with_the_next_set(tmp_path):
    file = tmp_path / "scores.npz"
    with pytest.raises(KeyboardInterrupt):
        score_sets(Scorer(interrupted=2), MASKS, PRIORS, file, None)
    rest = Scorer()
    found, before = score_sets(rest, MASKS, PRIORS, file, None)
    assert before > 0
    assert rest.calls == 1
    assert list(found) == list(MASKS)
    for label, mask in MASKS.items():
        np.testing.assert_array_equal(found[label], np.full((2, 4, 5), mask.sum()))


def test_scores_of_other_modules_are_not_taken(tmp_path):
    file = tmp_path / "scores.npz"
    score_sets(Scorer(), MASKS, PRIORS, file, None)
    again = Scorer()
    score_sets(again, {**MASKS, "only/a": ~MASKS["only/a"]}, PRIORS, file, None)
    assert again.calls == 1


def test_scores_of_other_priors_are_not_taken(tmp_path):
    file = tmp_path / "scores.npz"
    score_sets(Scorer(), MASKS, PRIORS, file, None)
    again = Scorer()
    score_sets(again, MASKS, {"mean": np.arange(3.0) + 1e-9}, file, None)
    assert again.calls == 3


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive"])
def test_a_damaged_file_is_scored_anew(tmp_path, content):
    file = tmp_path / "scores.npz"
    file.write_bytes(content)
    scorer = Scorer()
    with pytest.warns(UserWarning, match=r"scores.npz is damaged .*scored anew"):
        score_sets(scorer, MASKS, PRIORS, file, None)
    assert scorer.calls == 3


def lines_of(steps, *, every, done=0, total=10):
    """What a log shows, one second a step."""
    log = io.StringIO()
    clock = itertools.count(0.0)
    with meter(total, done, Console(file=log), every=every, clock=lambda: next(clock)) as progress:
        for step in steps:
            progress.advance(step, f"loss {step} [0.1]")
    return log.getvalue().splitlines()


def test_a_log_has_a_line_now_and_then_and_at_the_end():
    """The first without a rate, which would be that of compiling."""
    assert lines_of([2, 4, 6, 8, 10], every=2.0) == [
        "2/10 loss 2 [0.1]",
        "6/10 2/s 0:00:02 left loss 6 [0.1]",
        "10/10 2/s 0:00:00 left loss 10 [0.1]",
    ]


def test_a_rate_is_of_what_was_done_now():
    assert lines_of([7, 8], every=0.0, done=6)[1] == "8/10 1/s 0:00:02 left loss 8 [0.1]"


def test_without_a_console_nothing_is_shown(capsys):
    with meter(3, 0, None) as progress:
        progress.advance(3, "done")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar():
    screen = io.StringIO()
    with meter(4, 0, Console(file=screen, force_terminal=True, width=100)) as progress:
        progress.advance(4, "loss 1")
    assert "━" in screen.getvalue()
    assert "4/4" in screen.getvalue()


@pytest.mark.usefixtures("relaxed")
def test_a_run_interrupted_while_it_is_scored_ends_as_if_it_was_not(tmp_path, monkeypatch, capsys):
    sizes = {"num-updates": 2, "inner-steps": 2, "adapt-steps": 2, "num-test-tasks": 3, "hidden": 4}
    toy = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = ["run", "sinusoid", "--algorithm", "sigma-maml", *toy, "--out"]
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert main([*command, str(whole)]) == 0

    def interrupted(*args):
        curve_of, count = curves(*args), itertools.count()

        def until_the_third(mask):
            if next(count) == 2:
                raise KeyboardInterrupt
            return curve_of(mask)

        return until_the_third

    with monkeypatch.context() as patch:
        patch.setattr(meta, "curves", interrupted)
        assert main([*command, str(pieces)]) == 130
    assert "--resume" in capsys.readouterr().err
    assert (pieces / "scores.npz").exists()
    assert main([*command, str(pieces), "--resume"]) == 0
    assert not (pieces / "scores.npz").exists()
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, pieces)]
    assert all(result.pop("seconds") > 0 for result in results)
    assert results[0] == results[1]
