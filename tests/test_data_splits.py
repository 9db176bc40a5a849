"""Which characters of Omniglot are for what."""

import os
from pathlib import Path

import numpy as np
import pytest
from data_files import omniglot_arrays

from shrinx.data import alphabet_split, few_shot_split, load_omniglot

REAL = Path(os.environ.get("SHRINX_DATA", "")) / "omniglot28.npz"


@pytest.fixture(scope="module")
def omniglot(tmp_path_factory):
    """The real thing where it is at hand, else as many blank characters in as many alphabets."""
    if REAL.is_file():
        return load_omniglot(REAL.parent)
    folder = tmp_path_factory.mktemp("omniglot")
    sizes = [34] * 45 + [33] + [15] * 4
    arrays = omniglot_arrays(sum(sizes)) | {"alphabet": np.repeat([f"alphabet{row:02d}" for row in range(50)], sizes)}
    np.savez_compressed(folder / "omniglot28.npz", **arrays)
    return load_omniglot(folder)


def test_omniglot_has_46_alphabets_of_20_characters(omniglot):
    _, counts = np.unique(omniglot.alphabet, return_counts=True)
    assert len(counts) == 50
    assert len(omniglot.images) == 1623
    assert sum(counts >= 20) == 46


@pytest.mark.parametrize("num_train", [5, 10, 15, 20, 30])
@pytest.mark.parametrize("num_instances", [1, 15])
def test_alphabets_become_tasks(omniglot, num_train, num_instances):
    split = alphabet_split(omniglot.alphabet, seed=3, num_train=num_train, num_instances=num_instances)
    parts = (split.train, split.validation, split.test)
    assert [part.shape for part in parts] == [(num_train, 20), (36 - num_train, 20), (10, 20)]
    tasks = np.concatenate(parts)
    assert all(len(set(omniglot.alphabet[task])) == 1 for task in tasks)
    assert len({omniglot.alphabet[task[0]] for task in tasks}) == 46
    assert len(np.unique(tasks)) == tasks.size
    assert split.support.tolist() == list(range(num_instances))
    assert split.query.tolist() == [15, 16, 17, 18, 19]
    assert omniglot.images[split.train[0]][:, split.support].shape == (20, num_instances, 28, 28)


def test_fewer_alphabets_are_a_part_of_more(omniglot):
    few, many = (alphabet_split(omniglot.alphabet, seed=3, num_train=number) for number in (5, 30))
    np.testing.assert_array_equal(few.train, many.train[:5])
    np.testing.assert_array_equal(few.test, many.test)
    again, other = (alphabet_split(omniglot.alphabet, seed=seed, num_train=5) for seed in (3, 4))
    np.testing.assert_array_equal(again.train, few.train)
    assert not np.array_equal(other.train, few.train)
    assert not np.array_equal(other.test, few.test)


def test_a_seed_means_the_same_split_for_everybody():
    split = alphabet_split(np.repeat([f"alphabet{row:02d}" for row in range(46)], 25), seed=0)
    assert (split.test[:, 0] // 25).tolist() == [30, 39, 21, 14, 24, 17, 34, 7, 18, 36]
    assert split.test[0, :5].tolist() == [761, 769, 756, 765, 766]
    assert few_shot_split(1623, seed=0).test.character[::4][:5].tolist() == [698, 1048, 1390, 1478, 369]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_train": 0}, "`num_train` must be at least 1"),
        ({"num_train": 36}, "leave 10 alphabets for test and one for validation; got 36 of 46"),
        ({"num_instances": 0}, "`num_instances` must be 1 to 15, got 0"),
        ({"num_instances": 16}, "`num_instances` must be 1 to 15, got 16"),
    ],
)
def test_impossible_splits(arguments, message):
    with pytest.raises(ValueError, match=message):
        alphabet_split(np.repeat([f"alphabet{row:02d}" for row in range(46)], 20), seed=0, **arguments)


def test_characters_become_few_shot_classes():
    split = few_shot_split(1623, seed=1)
    parts = (split.train, split.validation, split.test)
    assert [part.character.size for part in parts] == [4 * 1100, 4 * 100, 4 * 423]
    for part in parts:
        assert len(set(zip(part.character.tolist(), part.quarter_turns.tolist(), strict=True))) == part.character.size
    characters = [set(part.character.tolist()) for part in parts]
    assert set.union(*characters) == set(range(1623))
    assert sum(map(len, characters)) == 1623
    assert not np.array_equal(split.test.character, few_shot_split(1623, seed=2).test.character)


def test_few_shot_needs_enough_characters():
    with pytest.raises(ValueError, match="more than 1200 characters, got 964"):
        few_shot_split(964, seed=0)
