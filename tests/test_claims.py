"""The paper's claims about sinusoids and the synthetic problems, tested on committed runs (results/) and nothing else.

A claim about a run that is not there is skipped, and says which command makes it.
"""

import math

import pytest
from claims import RESULTS, SIGMA, expect_misses, keeps_its_gain, load, overfits, within_factor

from tools.summary.paper import load_paper
from tools.summary.runs import Curve, Point, ratio

README = "quick-sigma-maml"
SINUSOID = (README, *(f"paper-{algorithm}" for algorithm in SIGMA))

known_misses = expect_misses(
    {
        "test_sinusoid_error_is_small[paper-sigma-imaml]": "0.076; by seeds 0.101, 0.056, 0.077, 0.062, 0.083",
        "test_sinusoid_error_is_small[paper-sigma-reptile]": "0.061; by seeds 0.042, 0.051, 0.048, 0.068, 0.098",
        "test_swirl_variances_are_those_of_the_data[sigma-maml]": "a ratio of 794 instead of 4",
    }
)


def curve(experiment: str, algorithm: str) -> Curve:
    """Generalisation loss against steps with the preset `paper`, all modules adapted."""
    return load(experiment, f"paper-{algorithm}").curves["all"]


def group_ratio(experiment: str, values: dict[str, float]) -> float:
    """The mean of one group of modules over that of the other; results/paper.toml says which they are."""
    (groups,) = (groups for groups in load_paper(RESULTS / "paper.toml").groups if groups.experiment == experiment)
    return ratio(values, groups.above, groups.below)


# Sinusoid


@pytest.mark.parametrize("name", SINUSOID)
def test_sinusoid_has_five_seeds(name):
    assert load("sinusoid", name).seeds >= 5


@pytest.mark.parametrize("name", SINUSOID)
def test_sinusoid_first_layer_has_the_large_variances(name):
    """Ten times any other module's."""
    variances = load("sinusoid", name).variances
    first = min(variances["w0"], variances["b0"])
    assert first >= 10 * max(value for module, value in variances.items() if module not in ("w0", "b0"))


@pytest.mark.parametrize("name", SINUSOID)
def test_sinusoid_first_layer_is_as_good_as_all(name):
    """Within 25 %."""
    scores = load("sinusoid", name).scores
    assert scores["layer 0"].mean <= 1.25 * scores["all"].mean


@pytest.mark.parametrize("module", ["b1", "b2", "w1", "w2"])
@pytest.mark.parametrize("name", SINUSOID)
def test_sinusoid_no_other_module_will_do(name, module):
    """Five times the error of all."""
    scores = load("sinusoid", name).scores
    assert scores[f"only {module}"].mean >= 5 * scores["all"].mean


@pytest.mark.parametrize("name", SINUSOID)
def test_sinusoid_error_is_small(name):
    assert load("sinusoid", name).scores["all"].mean <= 0.05


def test_sinusoid_long_adaptation_of_the_first_layer_does_not_overfit():
    assert keeps_its_gain(load("sinusoid", README).curves["layer 0"])


# Linear


def test_linear_meta_sgd_is_best_at_its_horizon():
    """Within a factor of 1.5 in steps."""
    found = curve("linear", "meta-sgd")
    assert found.horizon is not None
    assert within_factor(found.best.step, found.horizon, 1.5)


def test_linear_meta_sgd_overfits():
    assert overfits(curve("linear", "meta-sgd"))


def test_linear_sigma_reptile_does_not_overfit():
    assert keeps_its_gain(curve("linear", "sigma-reptile"))


def test_linear_sigma_reptile_is_as_good_as_meta_sgd():
    """Within 5 % of what Meta-SGD gains by adapting."""
    reptile, meta_sgd = curve("linear", "sigma-reptile"), curve("linear", "meta-sgd")
    assert abs(reptile.best.mean - meta_sgd.best.mean) <= 0.05 * meta_sgd.improvement


@pytest.mark.parametrize("algorithm", ["meta-sgd", "sigma-reptile"])
def test_linear_modular_methods_beat_maml(algorithm):
    assert curve("linear", algorithm).best.mean < curve("linear", "maml").best.mean


@pytest.mark.parametrize("algorithm", SIGMA)
def test_linear_variances_are_those_of_the_data(algorithm):
    """In ratio, within a factor of 2."""
    assert within_factor(group_ratio("linear", load("linear", f"paper-{algorithm}").variances), 16, 2)


# Swirl


def test_swirl_meta_sgd_overfits():
    assert overfits(curve("swirl", "meta-sgd"))


def test_swirl_sigma_reptile_keeps_improving():
    """Past 1,000 steps."""
    reptile = curve("swirl", "sigma-reptile")
    later = reptile.from_step(1000)
    assert later is not None
    assert reptile.last.mean < later.mean


@pytest.mark.parametrize("algorithm", SIGMA)
def test_swirl_variances_are_those_of_the_data(algorithm):
    """In ratio, within a factor of 2."""
    assert within_factor(group_ratio("swirl", load("swirl", f"paper-{algorithm}").variances), 4, 2)


def test_swirl_rates_are_not_those_of_the_data():
    """Curvature, not the prior, decides on Meta-SGD's step sizes: their ratio is off by more than a factor of 2."""
    found = group_ratio("swirl", load("swirl", "paper-meta-sgd").rates)
    assert math.isfinite(found)
    assert not within_factor(found, 4, 2)


# The measures themselves


def drawn(*means: float) -> Curve:
    points = tuple(Point(step, mean, 0.1) for step, mean in zip((0, 10, 100, 1000), means, strict=True))
    return Curve(points, horizon=10, lower_is_better=True)


@pytest.mark.parametrize(
    ("means", "overfit", "kept"),
    [
        ((2.0, 1.0, 1.1, 1.2), True, False),
        ((2.0, 1.0, 1.005, 1.005), False, True),
        ((2.0, 1.5, 1.2, 1.0), False, True),
        ((2.0, 1.0, 1.0, math.nan), False, False),
        ((2.0, 3.0, 3.0, 3.0), False, False),
    ],
)
def test_overfitting_is_told_apart(means, overfit, kept):
    assert overfits(drawn(*means)) is overfit
    assert keeps_its_gain(drawn(*means)) is kept


def test_within_a_factor():
    assert within_factor(8, 16, 2)
    assert within_factor(32, 16, 2)
    assert not within_factor(7.9, 16, 2)
    assert not within_factor(math.nan, 16, 2)
