"""Small-data augmented Omniglot: in every condition it must be what `aug-omniglot` is with that condition alone."""

import json
import shutil
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import product

import compiled_once
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_files import omniglot_folder

import shrinx as sx
from shrinx.cli import main
from shrinx.experiments import aug_omniglot, aug_omniglot_small
from shrinx.experiments.aug_omniglot_small import ALGORITHMS, PRESETS, conditions_of
from shrinx.models.conv import ConvNet
from shrinx.runs import stages, training
from shrinx.runs.conditions import lanes_of
from shrinx.runs.errors import UserError
from shrinx.runs.execute import execute
from shrinx.runs.folder import Request, RunFolder, read_metrics
from shrinx.runs.meta import draw
from shrinx.runs.training import Lanes, train
from shrinx.tasks.images import ABSENT

TOY = {"num_updates": 4, "inner_steps": 3, "adapt_steps": 2, "num_test_tasks": 3, "tasks_per_update": 2}
TOY |= {"num_filters": 2, "query_batch_size": 4, "batch_size": 4, "dtype": "float32"}
TWO = {"alphabets": (5, 3), "instances": (15, 1), "num_alphabets": 3}
SEEDS = range(2)

pytestmark = pytest.mark.usefixtures("relaxed")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(omniglot_folder(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module", autouse=True)
def one_block():
    """Convolutions are slow without the optimisations of the compiler, which the tests turn off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aug_omniglot, "ConvNet", partial(ConvNet, num_blocks=1))
        yield


def config(preset="slices", algorithm="sigma-reptile", **changes):
    return replace(aug_omniglot_small.preset_config(algorithm, preset), **changes)


def request(settings):
    return Request("aug-omniglot-small", settings.algorithm, "quick", len(SEEDS), settings)


@pytest.fixture(scope="module")
def settings(data):
    """Two conditions with rates of their own, and one pair of condition and seed at a time."""
    rates = {"inner_rate": 0.0, "inner_rates": (0.03, 0.4), "mean_rate": 0.0, "mean_rates": (1.4e-4, 1e-3)}
    return config("quick", data_dir=data, **TOY, **TWO, **rates, pairs_at_once=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, settings):
    """A run with a checkpoint after every update."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(training, "train_in_chunks", compiled_once.train_in_chunks)
        execute(request(settings), folder, report=False)
    return folder


def test_presets_are_the_papers_conditions():
    slices, others, grid = (
        [tuple(condition.about.values()) for condition in conditions_of(config(name))] for name in PRESETS[1:]
    )
    assert slices == [(5, 1), (10, 1), (15, 1), (20, 1), (15, 3), (15, 5), (15, 10), (15, 15)]
    assert sorted(grid) == sorted(product((5, 10, 15, 20), (1, 3, 5, 10, 15)))
    assert sorted(grid) == sorted(slices + others)


@pytest.mark.parametrize("preset", PRESETS[1:])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_condition_has_the_settings_of_the_single_one(algorithm, preset):
    common = asdict(config(preset, algorithm))
    for condition in conditions_of(config(preset, algorithm)):
        single = asdict(aug_omniglot.preset_config(algorithm, f"small-{condition.about['num_instances']}"))
        found = {name: value for name, value in {**common, **condition.numbers["rates"]}.items() if name in single}
        assert found == {**single, "num_alphabets": found["num_alphabets"], "num_instances": found["num_instances"]}


def test_tasks_are_those_of_the_single_condition(data):
    """The same alphabets in the same order, the same drawings of them, the same augmented queries."""
    few = {"alphabets": (5, 10, 20), "instances": (1, 3, 15), "num_alphabets": 5}
    seed, small = 1, config(data_dir=data, **{**TOY, "tasks_per_update": 12, **few})
    shared, conditions = aug_omniglot_small.setup(small), conditions_of(small)
    lanes = lanes_of(shared, conditions, [seed])
    key = jax.random.key(7)
    draw_all = eqx.filter_jit(lambda source, splits: jax.vmap(lambda split: draw(source, key, split))(splits))
    together = {name: draw_all(getattr(shared, name), lanes.splits) for name in ("train_tasks", "test_tasks")}
    for index, condition in enumerate(conditions):
        single = aug_omniglot.setup(replace(small, **condition.about))
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


def test_a_condition_learns_what_it_learns_alone(finished, tmp_path, settings):
    """Where there is room for no more drawings than it has, all draws are the same."""
    values = {field.name: getattr(settings, field.name) for field in fields(aug_omniglot.Config)}
    first = {"num_alphabets": 5, "num_instances": 15, "inner_rate": 0.03, "mean_rate": 1.4e-4}
    alone = aug_omniglot.Config(**{**values, **first})
    setup = replace(aug_omniglot.setup(alone), chunk=1)
    lanes = Lanes(jax.vmap(jax.random.key)(jnp.asarray(SEEDS)), setup.splits(SEEDS))
    priors, _ = train(setup, lanes, RunFolder.open(tmp_path / "run", request(settings), resume=False))
    for row, expected in zip(read_metrics(finished), read_metrics(tmp_path / "run"), strict=True):
        assert row["query_loss"][: len(SEEDS)] == pytest.approx(expected["query_loss"], rel=1e-4)
    found = json.loads((finished / "result.json").read_text())["conditions"][0]
    moved = np.mean(priors.log_variance, axis=0) - np.log(100)
    np.testing.assert_allclose(np.log(list(found["variances"].values())) - np.log(100), moved, atol=1e-4)
    assert np.abs(moved).max() > 1e-3


def test_every_condition_is_judged_by_the_average_at_its_own_rate(settings):
    averaged = replace(settings, average=7)
    setup, conditions = aug_omniglot_small.setup(averaged), conditions_of(averaged)
    split = jax.tree.map(
        lambda leaf: leaf[2], lanes_of(setup, conditions, SEEDS).splits
    )  # Second condition, first seed.
    solver = setup.solver_for(split)
    assert isinstance(solver, sx.Averaged)
    assert solver.window == 7
    assert float(solver.solver.learning_rate) == pytest.approx(0.4)
    assert isinstance(setup.learner_for(split).solver, sx.ProximalGD)


def test_resuming_changes_no_bit(finished, tmp_path, settings):
    pieces = tmp_path / "pieces"
    shutil.copytree(finished, pieces)
    for lost in ("result.json", "checkpoints/0000000003.npz", "checkpoints/0000000004.npz"):
        (pieces / lost).unlink()
    setup = aug_omniglot_small.setup(settings)
    lanes = lanes_of(setup, conditions_of(settings), SEEDS)
    train(setup, lanes, RunFolder.open(pieces, request(settings), resume=True))
    whole, resumed = (np.load(folder / "checkpoints" / "0000000004.npz") for folder in (finished, pieces))
    assert whole.files == resumed.files
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole.files)
    losses = [[row["query_loss"] for row in read_metrics(folder)] for folder in (finished, pieces)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_reptile_runs_and_curves_are_drawn(tmp_path, data, capsys):
    flags = {**TOY, "data_dir": data, "alphabets": "5 3", "instances": "15 1", "num_alphabets": 3}
    command = ["run", "aug-omniglot-small", "--algorithm", "reptile", "--long-curves", "--out", str(tmp_path / "run")]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", *str(value).split()]
    assert main(command) == 0
    assert "report.html" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["curves"]["steps"][-1] == 20
    assert list(result["curves"]["series"]) == ["all"]
    assert (tmp_path / "run" / "figures" / "adaptation.svg").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alphabets": (5, 10)}, "as many of the one as of the other; got 2 and 8"),
        ({"alphabets": (), "instances": ()}, "got 0 and 0"),
        ({"alphabets": (15, 15), "instances": (1, 1)}, "may come once only"),
        ({"num_alphabets": 10, "num_instances": 3}, "T = 10 and K = 3, which is none of the conditions"),
        ({"instances": (1, 1, 1, 1, 3, 5, 10, 16)}, "--instances 1 to 15"),
        ({"batch_size": 21}, "--batch-size 21 is more than the 20 images of a task with --instances 1"),
        ({"mean_rates": (0.1, 0.2)}, "--mean-rates has 2 numbers for 8 conditions; give one for each"),
        ({"inner_rates": (0.1,) * 8}, "for the first add --inner-rates without numbers"),
        ({"inner_rate": 0.0}, "for the second --inner-rate 0"),
        ({"variance_rate": 0.0}, "A rate is either --variance-rate, in all conditions, or --variance-rates"),
        ({"variance_rates": (0.1,) * 8}, "either --variance-rate, in all conditions, or --variance-rates, in each"),
        ({"pairs_at_once": 0}, "--pairs-at-once must be at least 1, got 0"),
    ],
)  # fmt: skip
def test_one_sentence_for_each_mistake(changes, message):
    with pytest.raises(UserError, match=message):
        conditions_of(config(**changes))


def test_too_many_alphabets(tmp_path, data, capsys):
    command = ["run", "aug-omniglot-small", "--data-dir", data, "--out", str(tmp_path / "run")]
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
