"""Reading what the runs in results/ have measured, for tests of the paper's claims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools.summary.runs import Curve, Run, load_run

RESULTS = Path(__file__).parents[1] / "results"
SIGMA = ("sigma-maml", "sigma-imaml", "sigma-reptile")


def expect_misses(misses: Mapping[str, str]) -> Any:
    """A fixture for the module: the claims named in `misses` (test -> what was measured instead) must fail.

    Should one come true, its entry must go.
    """

    @pytest.fixture(autouse=True)
    def known_misses(request: pytest.FixtureRequest) -> None:
        assert {name.partition("[")[0] for name in misses} <= set(dir(request.module))
        if request.node.name in misses:
            reason = f"measured: {misses[request.node.name]}"
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))

    return known_misses


def load(experiment: str, name: str) -> Run:
    """The run `PRESET-ALGORITHM` of an experiment."""
    folder = RESULTS / experiment / name
    if not folder.exists():
        preset, _, algorithm = name.partition("-")
        options = f"--algorithm {algorithm} --preset {preset} --seeds 5 --out results/{experiment}/{name}"
        pytest.skip(f"not run yet: shrinx run {experiment} {options}")
    return load_run(folder)


def within_factor(value: float, target: float, factor: float) -> bool:
    return target / factor <= value <= target * factor


def overfits(curve: Curve) -> bool:
    """More than 1 % of what adaptation gained is lost again by the last step.

    Not measured against the intervals: those are over seeds, which move a curve as a whole.
    """
    return curve.best.step < curve.last.step and curve.decline > 0.01


def keeps_its_gain(curve: Curve) -> bool:
    """At most 1 % of what adaptation gained is lost again by the last step."""
    return curve.decline <= 0.01
