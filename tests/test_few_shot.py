"""Few-shot experiments: which classes and images their tasks are made of, read off the images themselves."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest
from data_files import miniimagenet_folder, omniglot_arrays

from shrinx.cli import main
from shrinx.data.miniimagenet import SPLITS
from shrinx.experiments import find_experiment
from shrinx.runs.errors import UserError
from shrinx.runs.meta import draw, grid

CHARACTERS = 1230
ALGORITHMS = find_experiment("omniglot").algorithms


def stamp(images, inset, values):
    """The same byte near all four corners, where a turn does not move it."""
    for row in (inset, -1 - inset):
        for column in (inset, -1 - inset):
            images[:, :, row, column] = values


def read(images):
    """Character, drawing and quarter turns of every image."""
    pixels = np.round(np.asarray(images)[..., 0] * 255).astype(int)
    edges = [pixels[..., 0, 13], pixels[..., 13, 0], pixels[..., -1, 13], pixels[..., 13, -1]]
    return pixels[..., 0, 0] + 256 * pixels[..., 1, 1], pixels[..., 2, 2], np.argmax(edges, axis=0)


@pytest.fixture(scope="module")
def omniglot(tmp_path_factory):
    """A folder of drawings that say which they are, with a line along the top that goes where the top goes."""
    arrays = omniglot_arrays(CHARACTERS)
    images, characters = np.zeros_like(arrays["images"]), np.arange(CHARACTERS)[:, None]
    stamp(images, 0, characters % 256)
    stamp(images, 1, characters // 256)
    stamp(images, 2, np.arange(20)[None])
    images[:, :, 0, 13:15] = 255
    folder = tmp_path_factory.mktemp("omniglot")
    np.savez(folder / "omniglot28.npz", **{**arrays, "images": images})
    return folder


@pytest.fixture
def miniimagenet(tmp_path):
    return miniimagenet_folder(tmp_path)


def make_setup(experiment, folder, algorithm="sigma-maml", **changes):
    found = find_experiment(experiment)
    config = dataclasses.replace(found.config(algorithm, "quick"), data_dir=str(folder), **changes)
    return found.module.setup(config)


def parts_of(setup):
    return {"train": setup.train_tasks, "validation": setup.validation_tasks, "test": setup.test_tasks}


def split_of(setup, seed=0):
    return None if setup.split is None else jax.tree.map(lambda leaf: leaf[0], setup.splits([seed]))


def test_omniglot_keeps_the_characters_of_training_validation_and_test_apart(omniglot):
    setup = make_setup("omniglot", omniglot, tasks_per_update=200, num_test_tasks=200, queries=1)
    split, other = split_of(setup, 0), split_of(setup, 1)
    assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(CHARACTERS))
    assert set(split["test"].tolist()) != set(other["test"].tolist())
    for part, source in parts_of(setup).items():
        characters, _, _ = read(eqx.filter_jit(draw)(source, jax.random.key(0), split).support[0])
        assert set(characters.ravel()) <= set(split[part].tolist())
        # Far more than the tasks of one update, and not the same few over and over.
        assert len(set(characters.ravel())) > 0.9 * min(len(split[part]), 600)


def test_omniglot_tasks(omniglot):
    """Five classes, a turned character being one of its own; support and query are different drawings of them."""
    setup = make_setup("omniglot", omniglot, num_test_tasks=300, queries=4)
    tasks = eqx.filter_jit(draw)(setup.test_tasks, jax.random.key(1), split_of(setup))
    (support, support_labels), (query, query_labels) = tasks.support, tasks.query
    assert support.shape == (300, 5, 28, 28, 1)
    assert query.shape == (300, 20, 28, 28, 1)
    characters, drawings, turns = read(support)
    query_characters, query_drawings, query_turns = read(query)
    np.testing.assert_array_equal(support_labels, np.tile(np.arange(5), (300, 1)))
    same_class = np.asarray(query_labels)
    np.testing.assert_array_equal(query_characters, np.take_along_axis(characters, same_class, 1))
    np.testing.assert_array_equal(query_turns, np.take_along_axis(turns, same_class, 1))
    assert (query_drawings != np.take_along_axis(drawings, same_class, 1)).all()
    assert all(len(set(row)) == 5 for row in (4 * characters + turns).tolist())
    np.testing.assert_allclose(np.bincount(turns.ravel()) / 1500, 0.25, atol=0.04)


def test_rotations_of_one_character_meet_in_a_task(omniglot):
    setup = make_setup("omniglot", omniglot, num_test_tasks=300, queries=1)
    few = {**split_of(setup), "test": split_of(setup)["test"][:2]}
    characters, _, turns = read(eqx.filter_jit(draw)(setup.test_tasks, jax.random.key(0), few).support[0])
    assert all(len(set(row)) == 5 for row in (4 * characters + turns).tolist())
    assert all(len(set(row)) <= 2 for row in characters.tolist())


def test_miniimagenet_reads_every_part_from_its_own_file(miniimagenet):
    setup = make_setup("miniimagenet", miniimagenet, num_test_tasks=8, queries=2)
    assert set(parts_of(setup)) == set(SPLITS)
    for byte, source in zip((10, 20, 30), parts_of(setup).values(), strict=True):
        tasks = eqx.filter_jit(draw)(source, jax.random.key(0), None)
        assert tasks.support[0].shape[1:] == (5, 84, 84, 3)
        assert tasks.query[0].shape[1:] == (10, 84, 84, 3)
        for images, _ in (tasks.support, tasks.query):
            np.testing.assert_allclose(images[:, :, 0, 0, 0], byte / 255, rtol=1e-6)


@pytest.mark.parametrize("experiment", ["omniglot", "miniimagenet"])
def test_images_are_arguments_of_the_program_not_constants(request, experiment):
    setup = make_setup(experiment, request.getfixturevalue(experiment), queries=1)
    for source in parts_of(setup).values():
        program = eqx.filter_make_jaxpr(draw)(source, jax.random.key(0), split_of(setup))[0]
        assert not any(np.size(constant) > 100 for constant in program.consts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reptile_draws_mini_batches_of_many_shots_in_training_only(omniglot, algorithm):
    setup = make_setup("omniglot", omniglot, algorithm)

    def sizes(source):
        tasks = eqx.filter_eval_shape(draw, source, jax.random.key(0), split_of(setup))
        support = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tasks.support)
        batch = eqx.filter_eval_shape(setup.learner.sample, jax.random.key(1), support)
        return [len(labels) for _, labels in (support, batch)]

    assert sizes(setup.train_tasks) == ([50, 10] if algorithm.endswith("reptile") else [5, 5])
    assert sizes(setup.test_tasks) == [5, 5]


def test_how_far_curves_go_and_what_they_are_of(omniglot):
    setup = make_setup("omniglot", omniglot, adapt_steps=4, curve_steps=9, average=3)
    assert grid(setup)[-1] == 9
    assert setup.solver_for(None).window == 3


def test_queries_are_classified_with_so_many_of_every_other_class(omniglot):
    setup = make_setup("omniglot", omniglot, num_filters=8, num_test_tasks=1, queries=12, queries_at_once=2)
    prior = setup.init(jax.random.key(0))
    task = jax.tree.map(
        lambda leaf: leaf[0], eqx.filter_jit(draw)(setup.test_tasks, jax.random.key(1), split_of(setup))
    )
    # Noise, since the drawings of this data set hardly differ.
    images = jax.random.uniform(jax.random.key(2), task.query[0].shape)
    rows = np.arange(60).reshape(5, 6, 2).swapaxes(0, 1).reshape(6, 10)
    one_batch = setup.also["all, one batch"]
    by_hand = [one_batch(prior.mean, (images[batch], task.query[1][batch])) for batch in rows]
    found = setup.metric_fn(prior.mean, (images, task.query[1]))
    np.testing.assert_allclose(found, np.mean(by_hand), rtol=1e-6)
    assert found != one_batch(prior.mean, (images, task.query[1]))


def test_queries_in_one_batch_have_one_score(omniglot):
    assert make_setup("omniglot", omniglot, queries=4, queries_at_once=None).also == {}
    assert make_setup("omniglot", omniglot, queries=4, queries_at_once=4).also == {}


@pytest.mark.parametrize("size", [0, 3, 8])
def test_queries_must_fill_their_batches(omniglot, size):
    with pytest.raises(UserError, match=f"must divide the 4 `queries` of a class, got {size}"):
        make_setup("omniglot", omniglot, queries=4, queries_at_once=size)


def test_one_variance_for_all_modules(omniglot):
    setup = make_setup("omniglot", omniglot, shared_variance=True, num_filters=2)
    assert setup.init(jax.random.key(0)).modules.names == ("all",)


@pytest.mark.parametrize(
    ("experiment", "command"), [("omniglot", "shrinx data fetch omniglot"), ("miniimagenet", "shrinx data prepare")]
)
def test_missing_data_name_the_command_that_gets_them(tmp_path, capsys, experiment, command):
    assert main(["run", experiment, "--data-dir", str(tmp_path / "none"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert command in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()  # The next attempt starts anew, without --resume.


# The paper's tables of hyperparameters, row by row.
COLUMNS = ("maml", "reptile", "imaml", "sigma-maml", "sigma-reptile", "sigma-imaml")
TABLES = {
    "omniglot": """
        mean_optimiser   adam   sgd    adam  adam   sgd    adam
        mean_rate        4.8e-3 1.8    1e-3  1.7e-4 1.6    7.8e-3
        variance_rate    -      -      -     7.4e-3 7e-4   4e-3
        num_updates      60e3   100e3  60e3  60e3   100e3  60e3
        tasks_per_update 32     5      32    32     5      32
        damping          -      -      1.0   -      6e-3   0.18
        cg_steps         -      -      4     -      1      2
        solver           gd     adam   gd    gd     adam   gd
        inner_rate       0.968  8e-4   0.23  0.9    6e-4   1.3
        inner_steps      1      5      19    3      8      8
        adapt_steps      50     50     50    50     50     50
        batch_size       5      10     5     5      10     5
    """,
    "miniimagenet": """
        mean_optimiser   adam   sgd    adam   adam  adam   adam
        mean_rate        1e-3   0.45   2.5e-4 1e-3  6e-4   2e-4
        variance_rate    -      -      -      5e-2  2.5e-2 0.2
        num_updates      60e3   100e3  60e3   60e3  100e3  60e3
        tasks_per_update 4      5      4      5     3      5
        damping          -      -      6.5e-2 -     1e-2   2e-3
        cg_steps         -      -      5      -     3      2
        solver           gd     adam   gd     gd    gd     gd
        inner_rate       1e-2   1.5e-3 4e-2   0.1   1.35   1.6
        inner_steps      5      5      17     5     7      1
        adapt_steps      50     50     50     50    50     50
        batch_size       5      10     5      5     10     5
    """,
}


PRESETS = [(name, preset) for name in TABLES for preset in find_experiment(name).presets]


@pytest.mark.parametrize("algorithm", COLUMNS)
@pytest.mark.parametrize(("experiment", "preset"), PRESETS)
def test_a_search_is_around_the_presets_own_numbers(experiment, preset, algorithm):
    config = find_experiment(experiment).config(algorithm, preset)
    space = find_experiment(experiment).module.search_space(config)
    assert {"mean_rate", "inner_rate"} <= set(space)
    for field, bounds in space.items():
        assert bounds.low < getattr(config, field) < bounds.high


@pytest.mark.parametrize("column", range(6), ids=COLUMNS)
@pytest.mark.parametrize("experiment", TABLES)
def test_the_preset_is_the_papers_table(experiment, column):
    config = find_experiment(experiment).config(COLUMNS[column], "paper")
    for field, *values in (line.split() for line in TABLES[experiment].strip().splitlines()):
        found, expected = getattr(config, field), values[column]
        if expected == "-":
            continue
        if isinstance(found, str):
            assert found == expected, field
        elif (field, COLUMNS[column]) == ("damping", "imaml"):
            assert found == pytest.approx(float(expected) / config.variance)  # In units of λ.
        else:
            assert found == pytest.approx(float(expected)), field


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        ("omniglot", {"shots": 15}, "Each class has 20 images; 15 for the support set and 10 for the query set"),
        ("omniglot", {"train_shots": 15}, "Each class has 20 images; 15 for the support set"),
        ("miniimagenet", {"ways": 9, "queries": 1}, "There are .* classes to choose from; 9 `ways` are too many"),
    ],
)
def test_tasks_that_the_data_cannot_serve_are_refused_before_training(
    omniglot, miniimagenet, experiment, changes, message
):
    setup = make_setup(experiment, {"omniglot": omniglot, "miniimagenet": miniimagenet}[experiment], **changes)
    with pytest.raises(UserError, match=message):
        setup.check(split_of(setup))
