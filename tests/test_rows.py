"""Tasks of different sizes in one batch: padding changes nothing, and every step of a mini-batch is fair."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import NAMES, make_learners

import shrinx as sx

SIZES = (2, 7, 5)


def make_tasks(seed=0, sizes=SIZES):
    """Linear regression on two inputs, tasks of different sizes."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(n, 2)), "y": rng.normal(size=n)} for n in sizes]


def row_losses(params, data):
    # The logarithm is infinite where a row is padded by zeros.
    return 0.5 * (data["x"] @ params["slope"] + params["offset"] - data["y"]) ** 2 + jnp.log(jnp.abs(data["y"]))


def padded_loss(params, batch):
    return batch.sum(row_losses(params, batch.data))


def plain_loss(params, data):
    return jnp.sum(row_losses(params, data))


def make_prior():
    params = {"slope": jnp.array([0.3, -0.2]), "offset": jnp.array(0.1)}
    return sx.Prior.create(params, variance={"slope": 0.5, "offset": 2.0})


@pytest.mark.parametrize("length", [None, 12])
@pytest.mark.parametrize("name", NAMES)
def test_a_learner_does_not_see_the_padding(x64, name, length):
    """The update of a padded batch is the mean over its tasks, each by itself and as long as it is."""
    supports, queries = make_tasks(0), make_tasks(1, (4, 1, 3))
    learner = make_learners()[name]
    prior = learner.init(make_prior()).prior
    tasks = sx.Task(sx.Rows.stack(supports, length=length), sx.Rows.stack(queries))
    together, info = learner.gradient(padded_loss, prior, tasks)
    alone = [
        learner.gradient(plain_loss, prior, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], sx.Task(support, query)))
        for support, query in zip(supports, queries, strict=True)
    ]
    expected = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *[gradient for gradient, _ in alone])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), together, expected)
    np.testing.assert_allclose(info.query_loss, np.mean([one.query_loss for _, one in alone]), rtol=1e-12)


def test_three_rows_are_shrunk_more_than_three_hundred(x64):
    """To the closed form of the normal model: the mean of n rows, times n σ² / (n σ² + 1)."""
    tasks = [np.full(n, 2.0) for n in (1, 3, 30, 300)]
    prior, variance = sx.Prior.create(jnp.zeros(()), variance=0.25), 0.25
    batch = sx.Rows.stack(tasks)

    def loss_fn(mean, rows):
        return rows.sum(0.5 * (mean - rows.data) ** 2)

    adapted = jax.vmap(lambda task: sx.adapt(loss_fn, prior, task, sx.ProximalGD(3e-3), num_steps=5000))(batch)
    counts = np.array([1, 3, 30, 300])
    np.testing.assert_allclose(adapted.params, 2 * counts * variance / (counts * variance + 1), rtol=1e-6)


def test_variances_of_tasks_of_all_sizes_are_found(x64):
    """σ-iMAML on one parameter a task, θ ~ N(1, 0.25), seen in 1 to 20 observations of variance 1."""
    rng = np.random.default_rng(0)
    truths = rng.normal(1, 0.5, 3000)
    tasks = sx.Rows.stack([theta + rng.normal(size=rng.integers(2, 21)) for theta in truths])

    def loss_fn(mean, rows):
        return rows.sum(0.5 * (mean - rows.data) ** 2)

    learner = sx.sigma_imaml(
        sx.ProximalGD(0.04),
        num_steps=300,
        optimiser=make_learners()["maml"].optimiser,
        variance_optimiser=make_learners()["maml"].optimiser,
        linear_solver=sx.CG(max_steps=1),
    )
    keys = jax.random.split(jax.random.key(0), len(truths))
    halves = sx.Task(*jax.vmap(sx.Rows.split)(tasks, keys))

    def slope(log_variance):
        prior = sx.Prior.create(jnp.ones(()), variance=float(np.exp(log_variance)))
        gradient, _ = learner.gradient(loss_fn, prior, halves)
        return float(gradient.log_variance[0])

    # The query loss falls towards the truth from both sides.
    assert slope(np.log(0.1)) < 0 < slope(np.log(0.6))


def test_split_gives_every_row_to_one_part():
    rows = sx.Rows.stack([np.arange(n, dtype=np.float32) for n in (1, 2, 5, 10)])
    keys = jax.random.split(jax.random.key(1), 4)
    support, query = jax.vmap(lambda one, key: one.split(key, 0.3))(rows, keys)
    np.testing.assert_array_equal(support.weights + query.weights, rows.weights)
    np.testing.assert_array_equal(support.weights * query.weights, 0)
    assert support.count.tolist() == [1, 1, 2, 3]
    assert query.count.tolist() == [0, 1, 3, 7]


def test_split_is_even_over_keys():
    rows = jax.tree.map(lambda leaf: leaf[0], sx.Rows.stack([np.zeros(4, np.float32)], length=6))
    support, _ = jax.vmap(rows.split)(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_allclose(support.weights.mean(axis=0), [0.5] * 4 + [0, 0], atol=0.05)


def test_mini_batches_have_the_right_sum_on_average(x64):
    values, weights = jnp.array([1.0, 5.0, -2.0, 3.0, 100.0]), jnp.array([1.0, 2.0, 1.0, 1.0, 0.0])
    rows = sx.Rows(values, weights)
    batches = jax.vmap(lambda key: sx.RowSample(2)(key, rows))(jax.random.split(jax.random.key(0), 20_000))
    sums = jax.vmap(lambda batch: batch.sum(batch.data))(batches)
    assert not bool(jnp.any(batches.data == 100))
    assert float(sums.mean()) == pytest.approx(12, abs=4 * float(sums.std()) / 20_000**0.5)


def test_a_small_task_is_in_the_batch_whole():
    rows = sx.Rows.stack([np.arange(3, dtype=np.float32), np.arange(20, dtype=np.float32)])
    batch = jax.vmap(sx.RowSample(5))(jax.random.split(jax.random.key(0), 2), rows)
    assert sorted(batch.data[0][batch.weights[0] > 0].tolist()) == [0, 1, 2]
    assert batch.weights[0].sum() == 3
    assert batch.weights[1].tolist() == [4.0] * 5
    assert len(set(batch.data[1].tolist())) == 5


def test_a_sample_as_large_as_the_task_is_the_task():
    rows = sx.Rows(jnp.arange(4.0), jnp.ones(4))
    assert sx.RowSample(4)(jax.random.key(0), rows) is rows


def test_mini_batches_are_compiled_once():
    """Two samples of one size are the same to `jit`."""
    traced = []

    def loss_fn(params, batch):
        traced.append(None)
        return batch.sum((params - batch.data) ** 2)

    rows = sx.Rows(jnp.arange(8.0), jnp.ones(8))
    prior = sx.Prior.create(jnp.zeros(()))
    for seed in range(3):
        key = jax.random.key(seed)
        sx.adapt(loss_fn, prior, rows, sx.ProximalGD(0.01), num_steps=3, key=key, sample=sx.RowSample(4))
        if seed == 0:
            first = len(traced)
    assert len(traced) == first


def test_into_a_bank_and_back(tmp_path):
    tasks = [np.full(n, 2.0, np.float32) for n in (1, 30)]
    bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create({"mean": jnp.zeros(())}, variance=0.25), "mean")

    def loss_fn(params, rows):
        return rows.sum(0.5 * (params["mean"] - rows.data) ** 2)

    sx.adapt_task(bank, loss_fn, ["few", "many"], sx.Rows.stack(tasks), sx.ProximalGD(0.02))
    assert float(bank.params("few")["mean"]) == pytest.approx(0.4, abs=0.01)
    assert float(bank.params("many")["mean"]) == pytest.approx(2 * 7.5 / 8.5, abs=0.01)


def test_scores_are_means_over_real_rows():
    rows = sx.Rows(jnp.array([1.0, 2.0, 9.0]), jnp.array([1.0, 1.0, 0.0]))
    assert float(rows.mean(rows.data)) == 1.5
    assert float(rows.sum(jnp.array([1.0, 2.0, jnp.inf]))) == 3


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        ([], {}, "`tasks` is empty"),
        ([np.zeros((3, 2)), np.zeros((0, 2))], {}, r"`tasks\[1\]` is empty"),
        ([np.zeros(3), np.asarray(1.0)], {}, r"`tasks\[1\]` need a leading axis"),
        ([{"x": np.zeros(3), "y": np.zeros(4)}], {}, r"as many rows, got \{'x': 3, 'y': 4\}"),
        ([np.zeros((3, 2)), np.zeros((3, 1))], {}, r"tasks\[1\] has arrays .* only the number of rows may differ"),
        ([np.zeros(3), np.zeros(3, int)], {}, r"tasks\[1\] has arrays"),
        ([{"x": np.zeros(3)}, {"z": np.zeros(3)}], {}, r"tasks\[1\] has arrays \{'z'"),
        ([np.zeros(3), np.zeros(9)], {"length": 5}, r"`length` is 5, but tasks\[1\] has 9 rows"),
        ([np.zeros(3)], {"length": 0}, "`length` must be at least 1"),
    ],
)
def test_what_cannot_be_stacked(tasks, options, message):
    with pytest.raises(ValueError, match=message):
        sx.Rows.stack(tasks, **options)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"x": [1.0, 2.0]}], r"'x/0' of `tasks\[0\]` is no array but a float; lists become one by `np.asarray`"),
        ([np.zeros(3), {"x": np.array(["a"])}], r"'x' of `tasks\[1\]` holds no numbers but <U1"),
        ([np.array([None])], r"holds no numbers but object"),
    ],
)
def test_what_is_no_array_of_numbers(tasks, message):
    with pytest.raises(TypeError, match=message):
        sx.Rows.stack(tasks)


def test_flags_are_numbers():
    assert sx.Rows.stack([np.array([True, False])]).data.dtype == bool


def test_several_tasks_are_not_one():
    rows = sx.Rows.stack([np.zeros(3), np.zeros(5)])
    with pytest.raises(ValueError, match=r"several tasks: split them by `jax.vmap\(sx.Rows.split\)"):
        rows.split(jax.random.key(0))
    with pytest.raises(ValueError, match=r"one task at a time, got weights of shape \[2, 5\]"):
        sx.RowSample(2)(jax.random.key(0), rows)


def test_losses_that_are_not_one_for_each_row():
    rows = sx.Rows(jnp.zeros((4, 2)), jnp.ones(4))
    with pytest.raises(ValueError, match=r"one number for each row, shape \[4\]; got shape \[4, 2\]"):
        rows.sum(rows.data)


def test_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="`size` must be at least 1"):
        sx.RowSample(0)
    with pytest.raises(TypeError, match="draws from `Rows`, got tuple"):
        sx.RowSample(2)(jax.random.key(0), (jnp.zeros(3),))
    with pytest.raises(ValueError, match="`share` must be above 0 and below 1"):
        sx.Rows(jnp.zeros(3), jnp.ones(3)).split(jax.random.key(0), 1.0)


def test_scores_of_right_and_wrong():
    """What is no floating number counts as one, and weights keep their fractions."""
    rows = sx.Rows(jnp.arange(4.0), jnp.array([1.5, 1.5, 1.5, 0.0]))
    for values in (jnp.array([True, False, True, True]), jnp.array([1, 0, 1, 7])):
        assert rows.sum(values) == 3.0
        np.testing.assert_allclose(rows.mean(values), 2 / 3, rtol=1e-6)
    half = rows.mean(jnp.array([1.0, 0.0, 1.0, 1.0], jnp.float16))
    assert half.dtype == jnp.float16


def test_of_no_rows_there_is_no_mean():
    """A task of one row has nothing left to be judged by, which is no perfect score."""
    _, query = sx.Rows(jnp.arange(3.0), jnp.array([1.0, 0.0, 0.0])).split(jax.random.key(0))
    assert (query.count, query.sum(query.data)) == (0, 0)
    assert jnp.isnan(query.mean(query.data))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32])
def test_a_mask_is_weights(dtype):
    """Sums, halves and mini-batches are those of ones and zeros in floating numbers."""
    ones = np.array([1] * 8 + [0] * 2)
    masked, weighted = (sx.Rows(jnp.arange(10.0), jnp.asarray(ones, kind)) for kind in (dtype, jnp.float32))
    key = jax.random.key(0)
    assert masked.sum(jnp.full(10, 300)) == weighted.sum(jnp.full(10, 300)) == 2400
    for ours, theirs in zip(masked.split(key), weighted.split(key), strict=True):
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert sx.RowSample(2)(key, masked).weights.tolist() == [4.0, 4.0]
    mapped = jax.vmap(sx.Rows)(jnp.ones((2, 10)), jnp.asarray([ones, ones], dtype))
    assert jnp.issubdtype(mapped.weights.dtype, jnp.floating)


@pytest.mark.parametrize(
    ("data", "weights", "message"),
    [
        (np.zeros(3), np.ones(8), r"`weights` has shape \[8\], one for each row, but 'array' of `data` \[3\]"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, np.ones(3), r"but 'y' of `data` \[2\]: its leading axes"),
        (np.zeros(()), np.ones(1), r"of `data` \[\]"),
        (np.zeros((2, 4)), np.ones((2, 3)), r"shape \[2, 3\], one for each row, but 'array' of `data` \[2, 4\]"),
        (np.zeros(2), np.array(["a", "b"]), "`weights` must be numbers, one for each row, got <U1"),
        (np.zeros(2), np.ones(2, complex), "must be numbers, one for each row, got complex"),
    ],
)
def test_what_are_no_rows(data, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sx.Rows(data, weights)


def test_trees_of_this_structure_need_not_hold_rows():
    counts = jax.vmap(lambda rows: rows.count, in_axes=(sx.Rows(0, 0),))(sx.Rows.stack([np.ones(3), np.ones(4)]))
    assert counts.tolist() == [3, 4]
    assert jax.eval_shape(lambda: sx.Rows(jnp.zeros(3), jnp.ones(3, bool))).weights.dtype == jnp.float32


def mean_loss(params, batch):
    """Of padding and the other part, too."""
    return jnp.mean(row_losses(params, batch.data))


@pytest.mark.parametrize("wrap", [lambda loss_fn: loss_fn, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("sample", [None, sx.RowSample(2)])
def test_a_loss_that_takes_no_account_of_weights_is_refused(wrap, sample):
    rows, solver = sx.Rows.stack(make_tasks()), sx.ProximalGD(0.01)
    prior, key = make_prior(), jax.random.key(0)
    tasks = sx.Task(*jax.vmap(sx.Rows.split)(rows, jax.random.split(key, len(SIZES))))
    learner = sx.maml(solver, num_steps=2, optimiser=optax.sgd(0.1), sample=sample)
    one, options = jax.tree.map(lambda leaf: leaf[0], tasks.support), {"num_steps": 2, "key": key, "sample": sample}

    def calls(loss_fn):
        yield "loss_fn", lambda: sx.adapt(loss_fn, prior, one, solver, **options)
        yield "loss_fn", lambda: learner.update(loss_fn, learner.init(prior), tasks, key=key)
        yield "metric_fn", lambda: sx.evaluate(padded_loss, prior, tasks, solver, metric_fn=loss_fn, **options)

    for _, call in calls(wrap(padded_loss)):
        call()
    for what, call in calls(wrap(mean_loss)):
        with pytest.raises(ValueError, match=f"`{what}` takes no account of the weights of its `Rows`"):
            call()


def test_rows_beside_other_data_may_be_weighted_by_hand():
    rows = sx.Rows.stack(make_tasks())
    task = {"rows": jax.tree.map(lambda leaf: leaf[1], rows), "scale": jnp.array(2.0)}

    def loss_fn(params, batch):
        weights = batch["rows"].weights
        losses = jnp.where(weights > 0, row_losses(params, batch["rows"].data), 0)
        return (
            batch["scale"] * jax.lax.scan(lambda total, one: (total + one[0] * one[1], None), 0.0, (weights, losses))[0]
        )

    sx.adapt(loss_fn, make_prior(), task, sx.ProximalGD(0.01), num_steps=2)
