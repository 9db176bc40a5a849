"""Settings in words: read as what the field is, or refused in a sentence."""

from dataclasses import dataclass, replace

import pytest

from shrinx.experiments import sinusoid
from shrinx.experiments.limits import check_limits
from shrinx.runs.errors import UserError
from shrinx.runs.settings import read_settings

BASE = replace(sinusoid.preset_config("sigma-maml", "quick"), inner_steps=2)


def test_values_are_read_as_what_the_field_is():
    words = ["mean_rate=1,.003", "inner-steps=5,7", "solver=adam", "max_task_norm=none,2", "keep_best=true,False"]
    first, second = read_settings(words, BASE, check_limits)
    assert list(first.values()) == [1.0, 5, "adam", None, True]
    assert list(second.values()) == [0.003, 7, "adam", 2.0, False]
    assert [type(value) for value in second.values()] == [float, int, str, float, bool]
    assert list(first) == ["mean_rate", "inner_steps", "solver", "max_task_norm", "keep_best"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Nothing to try"),
        (["mean_rate"], "'mean_rate' is not FIELD=VALUE"),
        (["mean_rate="], "is not FIELD=VALUE"),
        (["rate=1"], "no field 'rate' to try values of; known: algorithm, .*mean_rate"),
        (["__doc__=1"], "no field '__doc__'"),
        (["algorithm=maml"], "use --algorithm"),
        (["mean_rate=1", "mean-rate=2"], "mean_rate are given twice"),
        (["mean_rate=1,2,3", "inner_rate=1,2"], "Some field has 3 values, others inner_rate=2"),
        (["inner_steps=2.5"], "inner_steps is a whole number; got '2.5'"),
        (["inner_steps=none"], "inner_steps is a whole number"),
        (["mean_rate=true"], "mean_rate is a number; got 'true'"),
        (["mean_rate=1,"], "mean_rate is a number; got ''"),
        (["max_task_norm=much"], "max_task_norm is a number"),
        (["keep_best=1"], "keep_best is true or false"),
        (["solver=newton"], "solver is one of gd, adam, backtracking; got 'newton'"),
        (["inner_steps=5,0"], "--inner-steps must be positive, got 0"),
        (["mean_rate=nan"], "--mean-rate must be a finite number"),
        (["variance=inf"], "--variance must be a finite number"),
    ],
)
def test_values_that_make_no_sense(words, message):
    with pytest.raises(UserError, match=message):
        read_settings(words, BASE, check_limits)


def test_lists_cannot_be_listed():
    @dataclass(frozen=True)
    class Config:
        sizes: tuple[int, ...] = (1, 2)

    with pytest.raises(UserError, match="Values of sizes cannot be listed"):
        read_settings(["sizes=1,2"], Config(), check_limits)
