"""Image tasks: what is augmented, drawn and turned, against direct code and by counting."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import ndimage

import shrinx as sx
from shrinx.models.conv import ConvNet
from shrinx.tasks.augment import Affine, augment, to_float, warp
from shrinx.tasks.images import (
    ABSENT,
    held_out_alphabets,
    sample_alphabets,
    sample_augmented,
    sample_episodes,
    sample_rows,
)


def pictures(count=4, height=28, width=28, channels=1, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 256, (count, height, width, channels)), jnp.uint8)


def warped(images, scale=1.0, shift=(0.0, 0.0), degrees=0):
    count = len(images)
    shifts = jnp.broadcast_to(jnp.asarray(shift, jnp.float32), (count, 2))
    return np.asarray(warp(images, jnp.full(count, scale), shifts, jnp.full(count, degrees, jnp.int32)))


def scaled_bytes(images):
    return np.asarray(images, np.float32) / 255


def assert_same_pixels(actual, expected):
    """Equal but for the rounding of a division by 255."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-7)


def catalogue(characters=12, drawings=6, side=4):
    """A data set whose pixels say which they are: pixel 0 the character, pixel 1 the drawing, pixel 2 always 200."""
    images = np.zeros((characters, drawings, side, side, 1), np.uint8)
    images[:, :, 0, 0, 0] = np.arange(characters)[:, None]
    images[:, :, 0, 1, 0] = np.arange(drawings)[None]
    images[:, :, 0, 2, 0] = 200
    return jnp.asarray(images)


def read(images):
    """The (character, drawing) of every image, bytes or floats."""
    values = np.asarray(images)
    values = values.astype(int) if values.dtype == np.uint8 else np.round(values * 255).astype(int)
    return values[..., 0, 0, 0], values[..., 0, 1, 0]


# --- augmentation


@pytest.mark.parametrize(("height", "width"), [(28, 28), (7, 10)])
def test_identity(height, width):
    images = pictures(height=height, width=width, channels=3)
    assert_same_pixels(warped(images), scaled_bytes(images))


@pytest.mark.parametrize("side", [28, 9])
@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_are_exact_and_counter_clockwise(quarters, side):
    images = pictures(height=side, width=side)
    expected = np.rot90(scaled_bytes(images), quarters, axes=(1, 2))
    assert_same_pixels(warped(images, degrees=90 * quarters), expected)


def test_shifts_by_whole_pixels_are_exact_and_bring_in_zeros():
    images = pictures(height=8, width=16)
    shifted = warped(images, shift=(2 / 8, -4 / 16))
    expected = np.zeros(images.shape, np.float32)
    expected[:, 2:, :-4] = scaled_bytes(images)[:, :-2, 4:]
    assert_same_pixels(shifted, expected)


def test_enlarging_twice_shows_the_middle():
    images = pictures(height=9, width=9)
    enlarged = warped(images, scale=2.0)
    np.testing.assert_allclose(enlarged[:, ::2, ::2], scaled_bytes(images)[:, 2:7, 2:7], atol=1e-6)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (11, 17)])
def test_warp_equals_an_affine_transform_by_scipy(height, width):
    rng = np.random.default_rng(1)
    images = pictures(12, height, width)
    scale, degrees = rng.uniform(0.8, 1.2, 12).astype(np.float32), rng.integers(0, 360, 12).astype(np.int32)
    shift = rng.uniform(-0.2, 0.2, (12, 2)).astype(np.float32)
    actual = jax.jit(warp)(images, jnp.asarray(scale), jnp.asarray(shift), jnp.asarray(degrees))
    centre, size = np.asarray([height - 1, width - 1]) / 2, np.asarray([height, width])
    for index in range(12):
        angle = np.deg2rad(degrees[index])
        matrix = np.asarray([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / scale[index]
        offset = centre - matrix @ (centre + shift[index] * size)
        picture = np.asarray(images[index, :, :, 0], np.float64) / 255
        expected = ndimage.affine_transform(picture, matrix, offset, order=1, mode="grid-constant")
        np.testing.assert_allclose(actual[index, :, :, 0], expected, atol=1e-5)


@pytest.mark.parametrize("rotate", [True, False])
def test_augment_draws_what_it_says(rotate):
    """A bright spot off the centre shows where every image went."""
    side, count = 41, 2000
    images = jnp.zeros((count, side, side, 1), jnp.uint8).at[:, 18:23, 26:31].set(255)
    result = np.asarray(jax.jit(augment, static_argnums=2)(jax.random.key(0), images, Affine(shift=0.0, rotate=rotate)))
    mass = result[..., 0]
    rows, columns = (np.tensordot(mass, grid, 2) / mass.sum((1, 2)) - 20 for grid in np.indices((side, side)))
    radius, angle = np.hypot(rows, columns) / 8, np.rad2deg(np.arctan2(-rows, columns))
    assert 0.78 < radius.min() < 0.85
    assert 1.15 < radius.max() < 1.22
    assert radius.mean() == pytest.approx(1.0, abs=0.02)
    if rotate:
        assert (np.histogram(angle, bins=6, range=(-180, 180))[0] > count / 8).all()
    else:
        assert np.abs(angle).max() < 1e-3


def test_shifts_are_independent_and_uniform():
    side, count = 21, 2000
    images = jnp.zeros((count, side, side, 1), jnp.uint8).at[:, 10, 10].set(255)
    affine = Affine(scale=(1.0, 1.0), shift=0.2, rotate=False)
    mass = np.asarray(jax.jit(augment, static_argnums=2)(jax.random.key(1), images, affine))[..., 0]
    shift = np.stack([np.tensordot(mass, grid, 2) / mass.sum((1, 2)) - 10 for grid in np.indices((side, side))]) / side
    assert np.abs(shift).max() < 0.2 + 1e-4
    np.testing.assert_allclose(shift.std(axis=1), 0.2 / np.sqrt(3), rtol=0.05)
    assert abs(np.corrcoef(shift)[0, 1]) < 0.1


def test_impossible_transformations_are_refused():
    with pytest.raises(ValueError, match="range of positive factors"):
        Affine(scale=(0.0, 1.0))
    with pytest.raises(ValueError, match="`shift` must be 0 or greater"):
        Affine(shift=-0.1)


# --- augmented Omniglot

ALPHABETS = jnp.asarray([[3, 1, 2], [7, 5, 4], [8, 9, 11]], jnp.int32)


def test_a_task_is_an_alphabet_with_its_classes_in_order():
    tasks = sample_alphabets(catalogue(), ALPHABETS, jax.random.key(0), num_tasks=50, num_support=3, num_query=2)
    for (images, labels), drawings in ((tasks.support, {0, 1, 2}), (tasks.query, {4, 5})):
        assert images.dtype == jnp.uint8
        characters, seen = read(images)
        assert set(seen.ravel()) == drawings
        rows = [row.tolist() for row in np.asarray(ALPHABETS)]
        for task in range(50):
            classes = [characters[task][labels[task] == position] for position in range(3)]
            assert [len(set(c)) for c in classes] == [1, 1, 1]
            assert [int(c[0]) for c in classes] in rows
    first = read(tasks.support[0])[0][:, 0]
    assert set(first) == {3, 7, 8}
    np.testing.assert_array_equal(first, read(tasks.query[0])[0][:, 0])


def test_mini_batches_are_different_rows_drawn_uniformly():
    tasks = sample_alphabets(catalogue(), ALPHABETS, jax.random.key(0), num_tasks=1, num_support=4, num_query=1)
    data = jax.tree.map(lambda leaf: leaf[0], tasks.support)
    draw = jax.jit(jax.vmap(lambda key: sample_rows(key, data, size=5)))
    images, labels = draw(jax.random.split(jax.random.key(1), 3000))
    characters, drawings = read(images)
    alphabet = next(row for row in np.asarray(ALPHABETS) if row[0] == read(data[0])[0][0])
    np.testing.assert_array_equal(alphabet[np.asarray(labels)], characters)
    rows = np.asarray(labels) * 4 + drawings
    assert all(len(set(row)) == 5 for row in rows)
    np.testing.assert_allclose(np.bincount(rows.ravel(), minlength=12) / 3000, 5 / 12, atol=0.04)


def test_fewer_drawings_and_alphabets_than_there_is_room_for():
    """As numbers that the program does not know; what is there is drawn as if nothing else had been."""
    room = {"num_tasks": 20, "num_query": 2}

    @jax.jit
    def sample(num_alphabets, num_present):
        key = jax.random.key(0)
        return sample_alphabets(
            catalogue(), ALPHABETS, key, num_support=4, num_alphabets=num_alphabets, num_present=num_present, **room
        )

    tasks = sample(jnp.asarray(2, jnp.int32), jnp.asarray(3, jnp.int32))
    expected = sample_alphabets(catalogue(), ALPHABETS[:2], jax.random.key(0), num_support=3, **room)
    present = np.asarray(tasks.support[1]) != ABSENT
    for rows, others in ((tasks.support, expected.support), (tasks.query, expected.query)):
        mask = present if rows is tasks.support else np.ones(rows[1].shape, bool)
        for leaf, other in zip(rows, others, strict=True):
            np.testing.assert_array_equal(np.asarray(leaf)[mask].reshape(other.shape), other)
    data = jax.tree.map(lambda leaf: leaf[0], tasks.support)
    draw = jax.jit(jax.vmap(lambda key, size: sample_rows(key, data, size=size), (0, None)), static_argnums=1)
    images, labels = draw(jax.random.split(jax.random.key(1), 3000), 5)
    rows = np.asarray(labels) * 4 + read(images)[1]
    assert (np.asarray(labels) != ABSENT).all()
    assert all(len(set(row)) == 5 for row in rows)
    shares = np.bincount(rows.ravel(), minlength=12).reshape(3, 4) / 3000
    np.testing.assert_allclose(shares, np.tile([5 / 9, 5 / 9, 5 / 9, 0], (3, 1)), atol=0.04)
    everything = np.sort(np.asarray(draw(jax.random.split(jax.random.key(2), 50), 9)[1]))
    np.testing.assert_array_equal(everything, np.tile(np.repeat(np.arange(3), 3), (50, 1)))


def test_every_image_of_a_batch_is_augmented_by_itself():
    image = np.zeros((8, 8, 1), np.uint8)
    image[2:5, 3:6] = 255
    data = (jnp.asarray(np.stack([image] * 6)), jnp.arange(6, dtype=jnp.int32))
    draw = jax.jit(sample_augmented, static_argnames=("size", "affine"))
    images, labels = draw(jax.random.key(0), data, size=6, affine=Affine())
    assert images.shape == (6, 8, 8, 1)
    assert images.dtype == jnp.float32
    assert sorted(labels.tolist()) == list(range(6))
    assert len({picture.tobytes() for picture in np.asarray(images)}) == 6
    still = Affine(scale=(1.0, 1.0), shift=0.0, rotate=False)
    assert_same_pixels(draw(jax.random.key(0), data, size=6, affine=still)[0], to_float(data[0]))


def test_held_out_alphabets_come_once_each_with_augmented_queries():
    def held_out(affine):
        source = functools.partial(held_out_alphabets, affine=affine, num_support=3, num_query=2)
        return jax.jit(source)(catalogue(), ALPHABETS, jax.random.key(0))

    tasks, moved = held_out(Affine(scale=(1.0, 1.0), shift=0.0, rotate=False)), held_out(Affine())
    characters, drawings = read(tasks.query[0])
    np.testing.assert_array_equal(characters, np.repeat(np.asarray(ALPHABETS), 2, axis=1))
    assert set(drawings.ravel()) == {4, 5}
    assert tasks.query[0].dtype == jnp.float32
    assert tasks.support[0].dtype == jnp.uint8
    assert not np.allclose(moved.query[0], tasks.query[0])
    assert (tasks.support[0] == moved.support[0]).all()


# --- few shots

EPISODE = {"ways": 3, "shots": 2, "queries": 3}


def test_episodes_have_disjoint_drawings_of_the_given_classes():
    classes = jnp.asarray([1, 4, 5, 9], jnp.int32)
    sample = jax.jit(functools.partial(sample_episodes, num_tasks=200, **EPISODE))
    tasks = sample(catalogue(), classes, jax.random.key(0))
    support, query = read(tasks.support[0]), read(tasks.query[0])
    assert tasks.support[0].shape == (200, 6, 4, 4, 1)
    assert tasks.query[0].shape == (200, 9, 4, 4, 1)
    for task in range(200):
        of_label = [
            set(support[0][task][tasks.support[1][task] == label]) | set(query[0][task][tasks.query[1][task] == label])
            for label in range(3)
        ]
        assert all(len(seen) == 1 for seen in of_label)
        assert len(set.union(*of_label)) == 3
        assert set.union(*of_label) <= {1, 4, 5, 9}
        pairs = list(zip(*(np.concatenate([support[i][task], query[i][task]]) for i in (0, 1)), strict=True))
        assert len(set(pairs)) == 15
    counts = np.bincount(support[0][:, 0], minlength=12)
    np.testing.assert_allclose(counts[[1, 4, 5, 9]] / 200, 0.25, atol=0.12)
    assert set(support[1].ravel()) == set(range(6))
    np.testing.assert_allclose(tasks.support[0][..., 0, 2, 0], 200 / 255, rtol=1e-6)


def test_rotated_characters_are_classes_of_their_own():
    sample = jax.jit(functools.partial(sample_episodes, num_tasks=300, rotations=True, **{**EPISODE, "ways": 4}))
    images, _ = sample(catalogue(), jnp.asarray([2], jnp.int32), jax.random.key(0)).support
    pictures = np.round(np.asarray(images) * 255).reshape(300, 4, 2, 4, 4)
    original = np.asarray(catalogue()[2, :, :, :, 0])
    turns = np.full((300, 4), -1)
    for k in range(4):
        turned = {picture.tobytes() for picture in np.rot90(original, k, axes=(1, 2)).astype(np.float32)}
        match = np.vectorize(lambda i, j, t=turned: all(p.tobytes() in t for p in pictures[i, j]))
        turns[match(*np.indices((300, 4)))] = k
    assert all(sorted(row) == [0, 1, 2, 3] for row in turns)
    np.testing.assert_allclose(np.bincount(turns[:, 0], minlength=4) / 300, 0.25, atol=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, a, k: sample_alphabets(x, a, k, num_tasks=2), "has 6 images; 15 for the support set and 5"),
        (lambda x, a, k: sample_alphabets(x, a, k, num_tasks=2, num_support=6, num_query=0), "at least one each"),
        (lambda x, a, k: sample_episodes(x, a[0], k, num_tasks=2, ways=4, shots=1, queries=1), "4 `ways` are too many"),
        (
            lambda x, a, k: sample_episodes(
                x[:, :, :2], a[0], k, num_tasks=2, ways=2, shots=1, queries=1, rotations=True
            ),
            "Only square images",
        ),
        (lambda x, a, k: sample_rows(k, (x[0], jnp.arange(6, dtype=jnp.int32)), size=7), "7 different images"),
    ],
)
def test_too_much_asked_for(call, message):
    with pytest.raises(ValueError, match=message):
        call(catalogue(), ALPHABETS, jax.random.key(0))


# --- all together


def test_a_source_is_an_argument_and_everything_is_traced_once():
    """Ten meta-updates and another data set of the same shape: one trace, and no images inside the program."""
    network = ConvNet((8, 8, 1), 3, num_filters=4, num_blocks=1)
    sample = functools.partial(sample_augmented, size=4, affine=Affine())
    learner = sx.sigma_reptile(
        sx.ProximalGD(0.1),
        num_steps=3,
        optimiser=optax.sgd(0.1),
        variance_optimiser=optax.sgd(0.1),
        linear_solver=sx.CG(max_steps=1),
        sample=sample,
        query_sample=sample,
    )
    state = learner.init(sx.Prior.create(network.init(jax.random.key(0)), variance=10.0))
    traces = []

    @eqx.filter_jit
    def update(train_tasks, state, key):
        traces.append(key)
        task_key, update_key = jax.random.split(key)
        return learner.update(network.cross_entropy, state, train_tasks(task_key), key=update_key)

    def source(seed):
        images = jnp.asarray(np.random.default_rng(seed).integers(0, 256, (12, 6, 8, 8, 1)), jnp.uint8)
        return eqx.Partial(sample_alphabets, images, ALPHABETS, num_tasks=2, num_support=3, num_query=2)

    results = {seed: update(source(seed), state, jax.random.key(0))[1].query_loss for seed in (0, 1)}
    for step in range(8):
        state, info = update(source(0), state, jax.random.key(step))
    assert len(traces) == 1
    assert results[0] != results[1]
    assert info.num_failed == 0
    program = eqx.filter_make_jaxpr(lambda s, k: s(k))(source(0), jax.random.key(0))[0]
    assert not any(np.size(constant) > 100 for constant in program.consts)
