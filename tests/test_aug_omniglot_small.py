"""Small-data augmented Omniglot: in every condition it must be what `aug-omniglot` is with that condition alone."""

import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from itertools import product

import equinox as eqx
import jax
import numpy as np
import pytest
from data_files import omniglot_folder

from shrinx.cli import main
from shrinx.experiments import aug_omniglot, aug_omniglot_small
from shrinx.experiments.aug_omniglot_small import ALGORITHMS, PRESETS, conditions_of
from shrinx.models.conv import ConvNet
from shrinx.runs import stages
from shrinx.runs.conditions import lanes_of
from shrinx.runs.errors import UserError
from shrinx.runs.meta import draw
from shrinx.tasks.images import ABSENT

TOY = ["--num-updates", "4", "--inner-steps", "3", "--adapt-steps", "2", "--num-test-tasks", "3"]
TOY += ["--tasks-per-update", "2", "--num-filters", "2", "--query-batch-size", "4", "--batch-size", "4"]
CONDITIONS = ["--alphabets", "5", "3", "--instances", "15", "1", "--num-alphabets", "3", "--num-instances", "1"]
RATES = ["--inner-rates", "0.03", "0.4", "--mean-rates", "1.4e-4", "1e-3", "--pairs-at-once", "1"]

pytestmark = pytest.mark.usefixtures("relaxed")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return omniglot_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module", autouse=True)
def one_block():
    """Convolutions are slow without the optimisations of the compiler, which the tests turn off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aug_omniglot, "ConvNet", partial(ConvNet, num_blocks=1))
        yield


def run(out, data, *more, algorithm="sigma-reptile", experiment="aug-omniglot-small"):
    command = ["run", experiment, "--algorithm", algorithm, "--data-dir", str(data), "--out", str(out), *TOY, *more]
    assert main(command) == 0
    return json.loads((out / "result.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A run of two conditions and two seeds with a checkpoint after every chunk."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "CHECKPOINT_SECONDS", 0.0)
        run(folder, data, *CONDITIONS, *RATES, "--seeds", "2")
    return folder


def config(preset="slices", algorithm="sigma-reptile", **changes):
    return replace(aug_omniglot_small.preset_config(algorithm, preset), **changes)


def test_presets_are_the_papers_conditions():
    slices, grid = (
        [tuple(condition.about.values()) for condition in conditions_of(config(name))] for name in PRESETS[1:]
    )
    assert slices == [(5, 1), (10, 1), (15, 1), (20, 1), (15, 3), (15, 5), (15, 10), (15, 15)]
    assert sorted(grid) == sorted(product((5, 10, 15, 20), (1, 3, 5, 10, 15)))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_condition_has_the_settings_of_the_single_one(algorithm, preset):
    common = asdict(config(preset, algorithm))
    for condition in conditions_of(config(preset, algorithm)):
        count = condition.about["num_instances"]
        single = asdict(aug_omniglot.preset_config(algorithm, "quick" if preset == "quick" else f"small-{count}"))
        if preset == "quick":
            single["inner_rate"] = aug_omniglot.INNER_RATES[algorithm][count]
        found = {name: value for name, value in {**common, **condition.numbers["rates"]}.items() if name in single}
        assert found == {**single, "num_alphabets": found["num_alphabets"], "num_instances": found["num_instances"]}


def test_tasks_are_those_of_the_single_condition(data):
    """The same alphabets in the same order, the same drawings of them, the same augmented queries."""
    seed, small = 1, config("grid", data_dir=str(data), tasks_per_update=12, num_test_tasks=10)
    shared, conditions = aug_omniglot_small.setup(small), conditions_of(small)
    lanes = lanes_of(shared, conditions, [seed])
    key = jax.random.key(7)
    draw_all = eqx.filter_jit(lambda source, splits: jax.vmap(lambda split: draw(source, key, split))(splits))
    together = {name: draw_all(getattr(shared, name), lanes.splits) for name in ("train_tasks", "test_tasks")}
    for index in (0, 6, 19):  # T = 5, 10 and 20 with K = 1, 3 and 15.
        single = aug_omniglot.setup(replace(small, inner_rate=0.1, **conditions[index].about))
        for name, tasks in together.items():
            expected = eqx.filter_jit(draw)(getattr(single, name), key, single.split(seed))
            images, labels = (np.asarray(leaf[index]) for leaf in tasks.support)
            present = labels != ABSENT
            assert present.sum() == expected.support[1].size
            np.testing.assert_array_equal(labels[present], expected.support[1].ravel())
            np.testing.assert_array_equal(images[present].reshape(expected.support[0].shape), expected.support[0])
            for leaf, other in zip(tasks.query, expected.query, strict=True):
                np.testing.assert_allclose(leaf[index], other, atol=1e-6)


def test_result(finished):
    result = json.loads((finished / "result.json").read_text())
    names = [module["name"] for module in result["modules"]]
    first, second = result["conditions"]
    assert (first["num_alphabets"], first["num_instances"]) == (5, 15)
    assert result["reference"] == {"num_alphabets": 3, "num_instances": 1}
    for condition in (first, second):
        assert set(condition["test"]) == {"before", "all", "selected", "output"}
        assert all(len(score["values"]) == 2 for score in condition["test"].values())
        assert list(condition["variances"]) == names
    assert first["variances"] != second["variances"]
    assert second["variances"] == {module["name"]: module["variance"] for module in result["modules"]}
    assert second["selected"] == [module["name"] for module in result["modules"] if module["selected"]]
    scores = second["test"]
    assert result["test"] == {
        **{kind: scores[kind] for kind in ("before", "all", "selected")},
        "only": {"output": scores["output"]},
        "subsets": {},
    }
    assert "curves" not in result


def test_a_condition_learns_what_it_learns_alone(finished, tmp_path, data):
    """With room for no more drawings than it has, all draws are the same."""
    single = ["--preset", "small-15", "--num-alphabets", "5", "--dtype", "float32", "--seeds", "2"]
    expected = run(tmp_path / "run", data, *single, experiment="aug-omniglot")
    found = json.loads((finished / "result.json").read_text())["conditions"][0]
    for module in expected["modules"]:
        assert found["variances"][module["name"]] == pytest.approx(module["variance"], rel=1e-3)
    for kind in ("before", "all"):
        assert found["test"][kind]["values"] == pytest.approx(expected["test"][kind]["values"], abs=0.011)


def test_resuming_changes_no_bit(finished, tmp_path, data):
    pieces = tmp_path / "pieces"
    shutil.copytree(finished, pieces)
    for lost in ("result.json", "checkpoints/0000000003.npz", "checkpoints/0000000004.npz"):
        (pieces / lost).unlink()
    run(pieces, data, *CONDITIONS, *RATES, "--seeds", "2", "--resume")
    whole, resumed = (json.loads((folder / "result.json").read_text()) for folder in (finished, pieces))
    assert {**whole, "seconds": 0} == {**resumed, "seconds": 0}
    with (
        np.load(finished / "checkpoints" / "0000000004.npz") as a,
        np.load(pieces / "checkpoints" / "0000000004.npz") as b,
    ):
        assert a.files == b.files
        assert all(np.array_equal(a[name], b[name]) for name in a.files)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "sigma-reptile"])
def test_every_algorithm_runs(tmp_path, data, algorithm):
    result = run(tmp_path / "run", data, "--seeds", "1", "--long-curves", algorithm=algorithm)
    assert len(result["conditions"]) == 3
    assert result["curves"]["steps"][-1] == 20
    assert list(result["curves"]["series"]) == ["all"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alphabets": (5, 10)}, "as many of the one as of the other; got 2 and 8"),
        ({"alphabets": (), "instances": ()}, "got 0 and 0"),
        ({"alphabets": (15, 15), "instances": (1, 1), "inner_rates": (0.1, 0.2)}, "may come once only"),
        ({"num_alphabets": 10, "num_instances": 3}, "T = 10 and K = 3, which is no condition"),
        ({"instances": (1, 1, 1, 1, 3, 5, 10, 16)}, "--instances 1 to 15"),
        ({"batch_size": 21}, "--batch-size 21 is more than the 20 images of a task with --instances 1"),
        ({"mean_rates": (0.1, 0.2)}, "--mean-rates has 2 numbers for 8 conditions; give one for each"),
        ({"inner_rate": 0.1}, "for the first add --inner-rates without numbers"),
        ({"inner_rates": ()}, "for the second --inner-rate 0"),
        ({"pairs_at_once": 0}, "--pairs-at-once must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_one_sentence_for_each_mistake(changes, message):
    with pytest.raises(UserError, match=message):
        conditions_of(config(**changes))


def test_too_many_alphabets(tmp_path, data, capsys):
    command = ["run", "aug-omniglot-small", "--data-dir", str(data), "--out", str(tmp_path / "run")]
    assert main([*command, "--alphabets", "5", "10", "36"]) == 2
    error = capsys.readouterr().err
    assert "--alphabets 36 is too much: `num_train` must be at least 1 and leave 10 alphabets for test" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_neither_searches_nor_banks(finished, tmp_path, capsys):
    assert main(["tune", "aug-omniglot-small", "--trials", "1"]) == 2
    assert "shrinx tune aug-omniglot --preset small-K" in capsys.readouterr().err
    assert main(["bank", "create", str(tmp_path / "bank"), "--run", str(finished)]) == 2
    assert "a model for every condition, a bank has one" in capsys.readouterr().err
