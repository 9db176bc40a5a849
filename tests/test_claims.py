"""What must show in the committed runs: the paper's claims, each with its tolerance.

A claim about a run that is not there yet is skipped, with the command that makes the run. A claim that is known to be
missed stands in `MISSED` with what was measured; should it come true, its entry must go.
"""

import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from shrinx.experiments import find_experiment
from shrinx.report.goals import GOALS, by_seed
from shrinx.report.load import load_run as load_reported
from tools.summary.paper import load_paper
from tools.summary.runs import Curve, Point, Run, load_run, ratio

RESULTS = Path(__file__).parents[1] / "results"
SIGMA = ("sigma-maml", "sigma-imaml", "sigma-reptile")
README = "quick-sigma-maml"
SINUSOID = (README, *(f"paper-{algorithm}" for algorithm in SIGMA))

# Name of the test -> what was measured instead.
MISSED: dict[str, str] = {
    "test_sinusoid_error_is_small[paper-sigma-imaml]": "0.076; by seeds 0.101, 0.056, 0.077, 0.062, 0.083",
    "test_sinusoid_error_is_small[paper-sigma-reptile]": "0.061; by seeds 0.042, 0.051, 0.048, 0.068, 0.098",
    "test_swirl_variances_are_those_of_the_data[sigma-maml]": "a ratio of 794 instead of 4",
    "test_omniglot_one_module_is_as_good_as_all[sigma-maml]": "0.969 with the output layer, 0.988 with all modules",
    "test_omniglot_accuracy_is_the_papers[reptile]": "0.960, after 60,000 updates of the paper's 100,000",
    "test_omniglot_accuracy_is_the_papers[sigma-reptile]": "0.958, after 24,000 updates of the paper's 100,000",
    "test_speech_goal[likelihood]": "2.552 after 10,000 steps, Reptile 2.540 where it stops",
    "test_speech_goal[likelihood of half]": "2.688, Reptile 2.559",
    "test_speech_goal[early stopping]": "from 2.544 up to 2.552; Reptile 2.540 to 2.582 within 2,000 steps",
    "test_speech_goal[early stopping of half]": "from 2.558 up to 2.688; Reptile 2.559 to 2.804 within 2,000 steps",
    "test_speech_goal[selected]": "the selected modules lose 0.0200 ± 0.0045 by speaker",
    "test_speech_goal[selected of half]": "the selected modules lose 0.043 ± 0.020 by speaker",
}


@pytest.fixture(autouse=True)
def known_misses(request):
    if request.node.name in MISSED:
        reason = f"measured: {MISSED[request.node.name]}"
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))


def load(experiment: str, name: str) -> Run:
    """The run `PRESET-ALGORITHM` of an experiment."""
    folder = RESULTS / experiment / name
    if not folder.exists():
        preset, _, algorithm = name.partition("-")
        options = f"--algorithm {algorithm} --preset {preset} --seeds 5 --out results/{experiment}/{name}"
        pytest.skip(f"not run yet: shrinx run {experiment} {options}")
    return load_run(folder)


def curve(experiment: str, algorithm: str) -> Curve:
    """Generalisation loss against steps with the preset `paper`, all modules adapted."""
    return load(experiment, f"paper-{algorithm}").curves["all"]


def group_ratio(experiment: str, values: dict[str, float]) -> float:
    """The mean of one group of modules over that of the other; results/paper.toml says which they are."""
    (groups,) = (groups for groups in load_paper(RESULTS / "paper.toml").groups if groups.experiment == experiment)
    return ratio(values, groups.above, groups.below)


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


def test_misses_name_claims():
    assert {name.partition("[")[0] for name in MISSED} <= {name for name in globals() if name.startswith("test_")}


# Small-data augmented Omniglot

# T and K.
FEW_DRAWINGS = ((5, 1), (10, 1), (15, 1), (20, 1), (15, 3), (15, 5), (15, 10))


def gains(algorithm: str, alphabets: int, instances: int) -> list[float]:
    """What learned variances bring, by seed; with the same seed both runs have the same alphabets."""
    values = []
    for name in (f"slices-sigma-{algorithm}", f"slices-{algorithm}"):
        load("aug-omniglot-small", name)
        found = load_reported(RESULTS / "aug-omniglot-small" / name).result["conditions"]
        (one,) = (c for c in found if (c["num_alphabets"], c["num_instances"]) == (alphabets, instances))
        values.append(one["test"]["all"]["values"])
    return [ours - theirs for ours, theirs in zip(*values, strict=True)]


@pytest.mark.parametrize(("alphabets", "instances"), FEW_DRAWINGS)
@pytest.mark.parametrize("algorithm", ["reptile", "imaml"])
def test_small_data_variances_help_with_every_seed(algorithm, alphabets, instances):
    assert min(gains(algorithm, alphabets, instances)) > 0


@pytest.mark.parametrize("algorithm", ["reptile", "imaml"])
def test_small_data_variances_help_more_the_fewer_drawings_there_are(algorithm):
    one, three, fifteen = (statistics.mean(gains(algorithm, 15, count)) for count in (1, 3, 15))
    assert one > three > fifteen


# Augmented Omniglot for a CPU


def gains_by_seed(runs: str) -> list[float]:
    """What learned variances bring in the two runs whose names begin so."""
    pair = (load_reported(RESULTS / "aug-omniglot" / f"{runs}-{name}") for name in ("sigma-reptile", "reptile"))
    learned, plain = (run.result["test"]["all"]["values"] for run in pair)
    return [ours - theirs for ours, theirs in zip(learned, plain, strict=True)]


def test_small_cpu_variances_help_with_every_seed():
    assert min(gains_by_seed("small-cpu")) > 0


def test_small_cpu_variances_help_more_with_one_drawing_than_with_five():
    one, five = (statistics.mean(gains_by_seed(preset)) for preset in ("small-cpu", "small-cpu-5"))
    assert one > five > 0


def test_small_cpu_takes_less_than_twenty_minutes():
    assert all(load("aug-omniglot", f"small-cpu-{name}").seconds < 1200 for name in ("sigma-reptile", "reptile"))


# Augmented Omniglot with all its data


def papers_accuracy(experiment: str) -> dict[str, float]:
    return {
        algorithm: reference.paper
        for reference in load_paper(RESULTS / "paper.toml").references
        for algorithm in reference.algorithms
        if (reference.experiment, reference.condition, reference.metric) == (experiment, "all", "accuracy")
        and reference.paper is not None
    }


LARGE = papers_accuracy("aug-omniglot")


def large(algorithm: str) -> Run:
    return load("aug-omniglot", f"large-{algorithm}")


@pytest.mark.parametrize("algorithm", LARGE)
def test_large_data_accuracy_is_the_papers(algorithm):
    """Or better."""
    assert large(algorithm).scores["all"].mean >= LARGE[algorithm]


@pytest.mark.parametrize("algorithm", ["reptile", "imaml"])
def test_large_data_variances_help(algorithm):
    assert large(f"sigma-{algorithm}").scores["all"].mean >= large(algorithm).scores["all"].mean


def test_large_data_goes_beyond_the_paper():
    """WarpGrad has 83.8 % on these tasks, with 25 alphabets to learn from."""
    assert large("sigma-reptile").scores["all"].mean > 0.8


@pytest.mark.parametrize("algorithm", ["sigma-reptile", "sigma-imaml"])
def test_large_data_selected_module_is_as_good_as_all(algorithm):
    """Within a point, and it is the output layer."""
    scores = large(algorithm).scores
    assert scores["selected"].mean >= scores["all"].mean - 0.01
    assert scores["selected"] == scores["output"]


# Few-shot Omniglot

OMNIGLOT = papers_accuracy("omniglot")


@pytest.mark.parametrize("algorithm", OMNIGLOT)
def test_omniglot_accuracy_is_the_papers(algorithm):
    """Or better, or less than half a point below it."""
    assert load("omniglot", f"tuned-{algorithm}").scores["all"].mean >= OMNIGLOT[algorithm] - 0.005


@pytest.mark.parametrize("algorithm", SIGMA)
def test_omniglot_task_specific_module_is_in_the_last_two_layers(algorithm):
    variances = load("omniglot", f"tuned-{algorithm}").variances
    assert max(variances, key=lambda name: variances[name]) in ("conv3", "norm3", "output")


@pytest.mark.parametrize("algorithm", SIGMA)
def test_omniglot_one_module_is_as_good_as_all(algorithm):
    """That of the largest variance, within a point."""
    run = load("omniglot", f"tuned-{algorithm}")
    module = max(run.variances, key=lambda name: run.variances[name])
    assert run.scores[f"only {module}"].mean >= run.scores["all"].mean - 0.01


@pytest.mark.parametrize("algorithm", OMNIGLOT)
def test_omniglot_keeps_what_adaptation_gained(algorithm):
    """To 50 steps, where meta-training has 1 to 19."""
    assert keeps_its_gain(load("omniglot", f"tuned-{algorithm}").curves["all"])


# Runs that stand for a preset

PRESET_RUNS = (
    *(f"aug-omniglot/large-{algorithm}" for algorithm in LARGE),
    *(f"aug-omniglot-small/slices-{algorithm}" for algorithm in LARGE),
    *(f"omniglot/tuned-{algorithm}" for algorithm in OMNIGLOT),
)


@pytest.mark.parametrize("name", PRESET_RUNS)
def test_a_run_has_the_settings_of_its_preset(name):
    experiment, _, folder = name.partition("/")
    load(experiment, folder)
    made = json.loads((RESULTS / name / "config.json").read_text())
    preset = asdict(find_experiment(experiment).config(made["algorithm"], made["preset"]))
    assert made["config"] | {"data_dir": None} == json.loads(json.dumps(preset))


# Speech

SPEECH = {
    "sigma-reptile": "--pretrained results/speech/paper-reptile",
    "reptile": "--pretrained results/speech/paper-pretrain",
    "sea-all": "",
    "sea-emb": "--pretrained results/speech/paper-sea-all",
}


@pytest.mark.parametrize("name", GOALS)
def test_speech_goal(name):
    """As the page of these runs states it, for every seed."""
    folders = sorted(path.parent for path in (RESULTS / "speech").glob("*/result.json"))
    seeds = by_seed(map(load_reported, folders)).values()
    missing = [algorithm for algorithm in SPEECH if not any(algorithm in methods for methods in seeds)]
    if missing:
        options = (
            f"--preset paper --algorithm {missing[0]} {SPEECH[missing[0]]} --out results/speech/paper-{missing[0]}"
        )
        pytest.skip(f"not run yet: shrinx run speech {options}")
    found = [GOALS[name](methods) for methods in seeds]
    assert not [goal.measured for goal in found if goal.met is False]
    for goal in found:
        if goal.met is None:
            pytest.skip(f"not measured: {goal.measured}")
