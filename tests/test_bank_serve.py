"""Serving: a mixed batch equals its rows one by one, compiles a few times, and stays small."""

import gc
import threading
from pathlib import Path

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import moved, sinusoid_prior
from problems import conv_net

import shrinx as sx
from shrinx.bank import BankError, residents
from shrinx.bank.store import Store
from shrinx.models import mlp

SELECTED = ("b0", "w0")


def fill(bank, prior, names, amount=0.5):
    for seed, name in enumerate(names):
        bank.put(name, moved(prior, bank.selected, amount, seed))


@pytest.fixture
def bank(tmp_path):
    prior = sinusoid_prior(16)
    bank = sx.Bank.create(tmp_path / "bank", prior, SELECTED)
    fill(bank, prior, [f"task{number}" for number in range(20)])
    return bank


@pytest.fixture
def compilations():
    """How many programs have been compiled since the last look."""
    durations = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            durations.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)

    def count():
        number = len(durations)
        durations.clear()
        return number

    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


def conv_logits(params, images):
    """The convolutional network of the tests, with the statistics of the images at hand."""
    x = images[:, None]
    for block in range(2):
        conv, norm = params[f"conv{block}"], params[f"bn{block}"]
        x = jax.lax.conv(x, conv["w"], (2, 2), "SAME") + conv["b"][None, :, None, None]
        x = (x - x.mean((0, 2, 3), keepdims=True)) * jax.lax.rsqrt(x.var((0, 2, 3), keepdims=True) + 1e-3)
        x = jnp.tanh(x * norm["scale"][None, :, None, None] + norm["offset"][None, :, None, None])
    return x.reshape(len(x), -1) @ params["output"]["w"].T + params["output"]["b"][None]


class Network(eqx.Module):
    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def equinox_model():
    keys = jax.random.split(jax.random.key(0))
    params, static = eqx.partition(
        Network(eqx.nn.Linear(3, 8, key=keys[0]), eqx.nn.Linear(8, 2, key=keys[1])), eqx.is_inexact_array
    )
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


def heads():
    params = {"attention": {"w": jax.random.normal(jax.random.key(0), (8, 3))}, "out": jnp.ones((8, 2))}
    return params, sx.by_axis(params, {"attention": 0}, groups=4), lambda p, x: x @ p["attention"]["w"].T @ p["out"]


MODELS = {
    "mlp": lambda: (
        sinusoid_prior(16).mean,
        sx.by_leaf(sinusoid_prior(16).mean),
        mlp.apply,
        ("w0", "b0"),
        lambda key, rows: jax.random.normal(key, (rows, 1)),
    ),
    "images with batch norm": lambda: (
        conv_net(jax.random.key(0)),
        sx.by_layer(conv_net(jax.random.key(0))),
        conv_logits,
        ("output", "bn1", "conv0"),
        lambda key, rows: jax.random.normal(key, (rows, 6, 8, 8)),
    ),
    "equinox": lambda: (
        equinox_model()[0],
        sx.by_layer(equinox_model()[0]),
        equinox_model()[1],
        ("second",),
        lambda key, rows: jax.random.normal(key, (rows, 3)),
    ),
    "parts of a leaf": lambda: (
        *heads(),
        ("attention[1]", "attention[3]"),
        lambda key, rows: jax.random.normal(key, (rows, 3)),
    ),
    "several inputs and outputs": lambda: (
        {"a": jnp.ones(2), "b": jnp.ones(2)},
        sx.by_leaf({"a": jnp.ones(2), "b": jnp.ones(2)}),
        lambda p, x: {"sum": x["left"] @ p["a"], "pair": (p["b"][None] + x["right"], x["left"])},
        ("b",),
        lambda key, rows: {"left": jax.random.normal(key, (rows, 2)), "right": jnp.ones((rows, 2))},
    ),
}


@pytest.mark.parametrize("compression", [None, "int8"])
@pytest.mark.parametrize("model", MODELS)
def test_a_mixed_batch_equals_its_rows(model, compression, tmp_path):
    params, modules, apply, selected, draw = MODELS[model]()
    prior = sx.Prior.create(params, modules=modules)
    bank = sx.Bank.create(tmp_path / "bank", prior, selected, compression=compression)
    fill(bank, prior, ["alice", "bob", "carol"])
    bank.pack()
    fill(bank, prior, ["dave", "carol"])
    names = ["carol", "alice", "bob", "alice", "dave", "carol", "carol"]
    inputs = draw(jax.random.key(1), len(names))
    points = model == "images with batch norm"
    result = sx.Bank.open(bank.path, like=params).predict(apply, names, inputs, points=points)
    for row, name in enumerate(names):
        one = jax.tree.map(lambda leaf, row=row: leaf[row] if points else leaf[row : row + 1], inputs)
        expected = apply(bank.params(name), one)
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a[row], b if points else b[0], rtol=1e-5, atol=1e-6)


def test_predictions_equal_those_of_the_adapted_models(tmp_path):
    """Not only of what the bank gives back: of the parameters as they were adapted."""
    prior = sinusoid_prior(40)
    bank = sx.Bank.create(tmp_path / "bank", prior, SELECTED)
    adapted = {f"task{seed}": moved(prior, SELECTED, 1.0, seed) for seed in range(50)}
    for name, params in adapted.items():
        bank.put(name, params)
    x = jax.random.uniform(jax.random.key(0), (50, 20, 1), minval=-5.0, maxval=5.0)
    result = sx.Bank.open(bank.path).predict(mlp.apply, list(adapted), x, points=True)
    expected = np.stack([mlp.apply(params, x[row]) for row, params in enumerate(adapted.values())])
    scale = np.abs(expected).max()
    np.testing.assert_allclose(result / scale, expected / scale, atol=1e-6)


def test_shared_modules_act_on_the_whole_batch(bank):
    """In the compiled program: the shared product is one of two matrices, not one per row."""
    server = bank._server
    program = server._program(mlp.apply, False, False)
    stack, positions = server._certain.positions(["task0", "task1", "task2", "task0"])
    lowered = program.lower(bank._base.prior.mean, stack, positions, np.ones((4, 1), np.float32)).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line]
    assert len(products) == 3
    assert sum("batching_dims" in line for line in products) == 1  # w0, gathered per row.


def test_neither_tasks_nor_their_number_compile_anything(bank, compilations):
    names = list(bank.names())
    generator = np.random.default_rng(0)
    for rows in (1, 2, 3, 8, 16):
        bank.predict(mlp.apply, names[:rows], np.ones((rows, 1), np.float32))
    assert compilations() <= 12  # Five predictors, and as many programs that put tasks in their places.
    for _ in range(50):
        rows = int(generator.integers(1, 17))
        chosen = generator.choice(names, rows).tolist()
        bank.predict(mlp.apply, chosen, generator.normal(size=(rows, 1)).astype(np.float32))
    assert compilations() == 0
    bank.put("task0", moved(bank.prior, SELECTED, 1.0, 99))
    bank.delete("task1")
    bank.predict(mlp.apply, ["task0", "task2"], np.ones((2, 1), np.float32))
    assert compilations() <= 1


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_is_flat_over_ten_thousand_calls(bank, compilations):
    bank = sx.Bank.open(bank.path, cache=16)  # Of twenty tasks, so that some make room for others.
    names = list(bank.names())
    generator = np.random.default_rng(0)

    def call(times):
        for _ in range(times):
            rows = int(generator.integers(1, 9))
            bank.predict(mlp.apply, generator.choice(names, rows).tolist(), np.ones((rows, 1), np.float32))
        gc.collect()
        return resident_bytes()

    call(1000)
    compilations()
    before = call(1000)
    after = call(8000)
    assert compilations() == 0
    assert after - before < 4e6
    assert len(bank._server._certain._place) <= 16


def test_new_functions_for_every_call_do_not_pile_up(bank):
    for _ in range(20):
        bank.predict(lambda params, x: mlp.apply(params, x), ["task0"], np.ones((1, 1), np.float32))
    assert len(bank._server._programs) <= 16


def test_methods_are_compiled_once(bank, compilations):
    class Model:
        def apply(self, params, x):
            return mlp.apply(params, x)

    model = Model()
    for _ in range(3):
        bank.predict(model.apply, ["task0"], np.ones((1, 1), np.float32))
    compilations()
    bank.predict(model.apply, ["task0"], np.ones((1, 1), np.float32))
    assert compilations() == 0
    assert len(bank._server._programs) == 1


@pytest.mark.parametrize("packed", [False, True])
def test_changes_are_seen_at_once(bank, packed):
    """Also those that other processes make, in the same tick of the clock."""
    other = sx.Bank.open(bank.path)
    if packed:
        other.pack()
    x = jnp.ones((1, 1))

    def output():
        return float(bank.predict(mlp.apply, ["task0"], x)[0, 0])

    def expected(seed):
        return pytest.approx(float(mlp.apply(moved(bank.prior, SELECTED, 0.5, seed), x)[0, 0]), rel=1e-5)

    assert output() == expected(0)
    for seed in range(30, 40):
        other.put("task0", moved(bank.prior, SELECTED, 0.5, seed))
        if packed and seed % 3:
            other.pack()
        assert output() == expected(seed)
    other.rename("task0", "elsewhere")
    with pytest.raises(BankError, match="There is no task 'task0'"):
        output()
    other.put("task0", moved(bank.prior, SELECTED, 0.5, 50))
    assert output() == expected(50)


def test_few_places_serve_many_tasks(bank):
    small = sx.Bank.open(bank.path, cache=4)
    x = np.linspace(-1, 1, 3, dtype=np.float32).reshape(3, 1)
    generator = np.random.default_rng(0)
    for _ in range(30):
        names = generator.choice(bank.names(), 3).tolist()
        np.testing.assert_array_equal(small.predict(mlp.apply, names, x), bank.predict(mlp.apply, names, x))
    with pytest.raises(BankError, match=r"has 5 different tasks, and 4 are kept at hand: .* `cache=8`"):
        small.predict(mlp.apply, bank.names()[:5], np.ones((5, 1)))


def test_threads_share_a_bank(bank):
    bank = sx.Bank.open(bank.path, cache=4)
    x = np.ones((2, 1), np.float32)
    expected = {name: mlp.apply(bank.params(name), jnp.ones((1, 1)))[0] for name in bank.names()}
    wrong = []

    def serve(seed):
        generator = np.random.default_rng(seed)
        for _ in range(60):
            names = generator.choice(list(expected), 2).tolist()
            result = bank.predict(mlp.apply, names, x)
            if not all(np.allclose(result[row], expected[name], atol=1e-5) for row, name in enumerate(names)):
                wrong.append(names)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("names", "inputs", "message"),
    [
        (["nobody"], np.ones((1, 1)), "There is no task 'nobody' in .*; known: 'task0', .* and 15 more"),
        ("task0", np.ones((5, 1)), "`names` must be a list with one task for every row"),
        ([], np.ones((0, 1)), "`names` must be a list"),
        (["task0"], np.ones((2, 1)), r"one row for each of the 1 named tasks, got shape \(2, 1\)"),
        (["task0"], np.float32(1.0), r"got shape \(\)"),
        (["task0"], {}, "got shapes none"),
        (["../../etc"], np.ones((1, 1)), "There is no task '../../etc'"),
    ],
)
def test_batches_that_cannot_be_served(bank, names, inputs, message):
    with pytest.raises(ValueError, match=message):
        bank.predict(mlp.apply, names, inputs)
    assert bank.predict(mlp.apply, ["task0"], np.ones((1, 1))).shape == (1, 1)


@pytest.mark.parametrize(
    ("points", "shape", "said"),
    [
        (False, (1, 3, 4), "as a batch of one point, here of shape (1, 3, 4); see `points` if the rows are batches"),
        (True, (1, 4), "as a batch of points, here of shape (4,); see `points` if the rows are single points"),
    ],
)
def test_a_function_that_cannot_take_a_row_says_what_it_was_given(bank, points, shape, said):
    def picky(params, x):
        raise TypeError("not like that")

    with pytest.raises(TypeError, match="not like that") as caught:
        bank.predict(picky, ["task0"], np.ones(shape, np.float32), points=points)
    assert said in caught.value.__notes__[-1]
    with pytest.raises(BankError, match=r"one output for every point; for a batch of one it gave shapes \[\(\)\]"):
        bank.predict(lambda params, x: jnp.sum(x), ["task0"], np.ones((1, 4), np.float32))


@pytest.mark.parametrize("points", [False, True])
def test_the_exported_predictor_agrees(bank, tmp_path, points):
    from safetensors.numpy import load_file

    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape((5, 3, 1) if points else (15, 1))
    bank.export_predictor(mlp.apply, x, tmp_path / "program.bin", points=points)
    program = jax.export.deserialize(bytearray((tmp_path / "program.bin").read_bytes()))
    for name in ("task3", "task7"):
        bank.export(name, tmp_path / f"{name}.safetensors")
        result = program.call(load_file(tmp_path / f"{name}.safetensors"), x[:4])
        expected = bank.predict(mlp.apply, [name] * 4, x[:4], points=points)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def two_tasks(tmp_path):
    params = {"body": jnp.ones((2, 3)), "head": jnp.ones(3)}
    bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), "head")
    for name, value in (("alice", 5.0), ("bob", -7.0)):
        bank.put(name, {**params, "head": jnp.full(3, value)})
    return lambda params, x: x @ params["body"] @ params["head"]


def test_an_interrupted_prediction_leaves_nobody_with_the_row_of_another(tmp_path, monkeypatch):
    apply = two_tasks(tmp_path)
    bank, x = sx.Bank.open(tmp_path / "bank", cache=1), jnp.ones((1, 2))
    assert float(bank.predict(apply, ["alice"], x)[0]) == 30

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(residents, "_overwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bank.predict(apply, ["bob"], x)
    for name, expected in (("bob", -42), ("alice", 30)):
        assert float(bank.predict(apply, [name], x)[0]) == expected


def test_every_file_is_read_once(tmp_path, monkeypatch):
    apply = two_tasks(tmp_path)
    bank, read = sx.Bank.open(tmp_path / "bank"), []
    plain = Store.read
    monkeypatch.setattr(Store, "read", lambda self, name: read.append(name) or plain(self, name))
    bank.predict(apply, ["alice", "bob"], jnp.ones((2, 2)))
    assert sorted(read) == ["alice", "bob"]
