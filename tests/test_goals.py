"""The goals of speech runs: met, missed or not measured, by numbers that were made up."""

import math
from dataclasses import replace

import pytest

from shrinx.report.goals import GOALS, OURS, by_seed, goal_table, goals
from shrinx.report.load import LoadedRun

STEPS = [0, 100, 10_000]
CURVES = {
    OURS: [3.0, 2.0, 1.8],
    "reptile": [3.0, 1.9, 2.5],
    "sea-all": [3.0, 2.0, 2.6],
    "sea-emb": [3.0, 2.5, 2.5],
}
SIMILAR = {OURS: 0.85, "reptile": 0.85, "sea-all": 0.8, "sea-emb": 0.7}
LABELS = {OURS: ("all", "selected")}


def score(mean, *values):
    return {"mean": mean, "ci95": 0.1, "values": list(values) or [mean]}


def made(algorithm, **config):
    """A run that meets its part of all goals."""
    means = CURVES[algorithm]
    names = [f"{label}, {size} utterances" for label in LABELS.get(algorithm, ("all",)) for size in (80, 40)]
    best = means[-1] if algorithm == OURS else min(means)
    result = {
        "test": {"subsets": dict.fromkeys(names, score(best))},
        "curves": {"steps": STEPS, "series": {name: {"mean": list(means)} for name in names}},
        "fraction": 0.16,
        "modules": [{"name": "a", "selected": True}, {"name": "b", "selected": False}],
        "speech": {"stops": dict.fromkeys(names, 100), "scores": {name: [best - 1, best + 1] for name in names}},
    }
    measures = {
        "similarity": {"all-80": score(SIMILAR[algorithm]), "same speaker": score(0.9), "other speakers": score(0.5)},
        "predicted-mos": {"all-80": score(3.0)},
        "digit-accuracy": {"all-80": score(0.92)},
    }
    settings = {"early_stop": algorithm != OURS, "seed": 0, **config}
    request = {"experiment": "speech", "algorithm": algorithm, "config": settings}
    return LoadedRun(f"run-{algorithm}", request, {}, (), result, measures=measures)


@pytest.fixture
def methods():
    return {algorithm: made(algorithm) for algorithm in CURVES}


def judged(methods, name):
    goal = GOALS[name](methods)
    return goal.verdict, goal.measured


def test_all_met(methods):
    assert {name: judged(methods, name)[0] for name in GOALS} == dict.fromkeys(GOALS, "met")
    assert judged(methods, "likelihood")[1] == (
        "σ-Reptile: 1.80 ± 0.10; Reptile: 1.90 ± 0.10; SEA-All: 2.00 ± 0.10; SEA-Emb: 2.50 ± 0.10"
    )
    assert "the real speaker's own 0.9 is 0.05 above σ-Reptile" in judged(methods, "similarity")[1]
    assert judged(methods, "selected")[1].startswith("1 of 2 modules 1.80 ± 0.10, all 1.80 ± 0.10, loss by speaker 0")


def subset(algorithm, mean, size=80):
    return lambda runs: runs[algorithm].result["test"]["subsets"].update({f"all, {size} utterances": score(mean)})


def curve(algorithm, *means, size=80):
    return lambda runs: runs[algorithm].result["curves"]["series"].update({f"all, {size} utterances": {"mean": means}})


def measure(algorithm, name, mean):
    return lambda runs: runs[algorithm].measures[name].update({"all-80": score(mean)})


def speakers(*scores):
    return lambda runs: runs[OURS].result["speech"]["scores"].update({"selected, 80 utterances": list(scores)})


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (subset(OURS, 1.95), "likelihood", "; not σ-Reptile ≤ Reptile"),
        (subset("reptile", 2.05), "likelihood", "; not Reptile ≤ SEA-All"),
        (subset("sea-all", 2.5), "likelihood", "; not SEA-All < SEA-Emb"),
        (subset("sea-all", 1.0, size=40), "likelihood of half", "; not Reptile ≤ SEA-All"),
        (curve(OURS, 3.0, 1.5, 1.6), "early stopping", "σ-Reptile: lowest 1.5, 1.6 after 10,000 steps"),
        (curve(OURS, 3.0, 1.5, None), "early stopping", "σ-Reptile: lowest 1.5, diverged by step 10,000"),
        (curve("sea-all", 3.0, 1.5, 1.4, size=40), "early stopping of half", "SEA-All: lowest 1.4, 1.4 after 10,000"),
        (measure("sea-emb", "similarity", 0.85), "similarity", "not σ-Reptile > SEA-Emb"),
        (measure("reptile", "similarity", 0.86), "similarity", "not σ-Reptile ≥ Reptile"),
        (measure("reptile", "predicted-mos", 3.1), "naturalness", "Reptile: 3.10 ± 0.10"),
        (measure(OURS, "digit-accuracy", 0.89), "digits", "0.89 ± 0.10"),
        (speakers(1.3, 3.3), "selected", "loss by speaker 0.5"),
        (lambda runs: runs[OURS].result.update(fraction=0.21), "share", "21 %"),
    ],
)
def test_missed(methods, change, name, said):
    change(methods)
    verdict, measured = judged(methods, name)
    assert verdict == "missed"
    assert said in measured
    others = [judged(methods, other)[0] for other in GOALS if other != name]
    assert set(others) == {"met"}


def test_just_enough_digits_are_enough(methods):
    measure(OURS, "digit-accuracy", math.nextafter(0.9, 0.0))(methods)
    assert judged(methods, "digits")[0] == "met"


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (lambda runs: runs.pop("sea-emb"), "likelihood", "SEA-Emb: no run of sea-emb"),
        (lambda runs: runs.pop("sea-emb"), "similarity", "SEA-Emb: no run of sea-emb"),
        (lambda runs: runs.pop(OURS), "share", "no run of sigma-reptile"),
        (lambda runs: runs.pop(OURS), "selected", "no run of sigma-reptile"),
        (lambda runs: runs[OURS].measures.clear(), "digits", "shrinx.measures run-sigma-reptile --only digit-accuracy"),
        (lambda runs: runs["reptile"].result.pop("curves"), "early stopping", "run-reptile has no curve of “all, 80"),
        (lambda runs: runs[OURS].result["speech"].pop("scores"), "selected", "does not say what it scored"),
        (
            lambda runs: runs["reptile"].config["config"].update(early_stop=False),
            "likelihood",
            "run-reptile ran without early stopping",
        ),
        (
            lambda runs: runs[OURS].config["config"].update(early_stop=True),
            "likelihood",
            "run-sigma-reptile ran with early stopping",
        ),
        (
            lambda runs: runs[OURS].result["curves"].update(steps=[0, 100, 2000]),
            "early stopping",
            "1.8 after 2,000 steps, which are too few",
        ),
    ],
)
def test_not_measured(methods, change, name, said):
    change(methods)
    verdict, measured = judged(methods, name)
    assert verdict == "not measured"
    assert said in measured


def test_what_is_missed_already_is_not_left_open(methods):
    subset(OURS, 1.95)(methods)
    del methods["sea-emb"]
    assert judged(methods, "likelihood")[0] == "missed"
    methods["reptile"].result["curves"].update(steps=[0, 100, 2000])
    assert judged(methods, "early stopping")[0] == "met"


def test_runs_of_one_data_size_have_no_goals_of_half(methods):
    for run in methods.values():
        series = run.result["curves"]["series"]
        run.result["curves"]["series"] = {name: series[name] for name in series if "40" not in name}
    assert len(goals(methods)) == sum("half" not in name for name in GOALS) < len(GOALS)
    assert {goal.verdict for goal in goals(methods)} == {"met"}


def test_seeds_are_judged_apart(methods):
    again = made(OURS, seed=1)
    other = replace(made("reptile"), name="later")
    assert by_seed([*methods.values(), again, other]) == {0: methods, 1: {OURS: again}}
    rows = goal_table([*methods.values(), again])
    assert len(rows) == 2 * len(goals(methods))
    assert {row[2] for row in rows[: len(GOALS)]} == {"met"}
    assert {row[0] for row in rows} == {0, 1}
    assert goal_table([replace(again, result={})]) == []
