"""The bank on disk: what goes in comes out, whatever happens to files and processes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import assert_same, moved, sinusoid_prior

import shrinx as sx
from shrinx.bank import BankError, DamagedError
from shrinx.bank.delta import check_compression
from shrinx.bank.posterior import check_structure
from shrinx.bank.safetensors import TensorFile, write_tensors
from shrinx.models import mlp
from shrinx.models.conv import ConvNet

SELECTED = ("b0", "w0")


@pytest.fixture
def prior():
    return sinusoid_prior(8)


@pytest.fixture
def bank(prior, tmp_path):
    return sx.Bank.create(tmp_path / "bank", prior, SELECTED)


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    path.write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
def test_what_goes_in_comes_out_to_the_bit(bank, prior, packed):
    alice, bob = moved(prior, SELECTED, 1.0), moved(prior, "w0", 1e-9, seed=1)
    bank.put("alice", alice)
    bank.put("bob", bob)
    if packed:
        bank.pack()
        assert not files_of(bank.path / "tasks")
    again = sx.Bank.open(bank.path)
    assert again.names() == ("alice", "bob")
    assert again.selected == SELECTED
    assert_same(again.params("alice"), alice)
    assert_same(again.params("bob"), bob)
    assert_same(again.prior.mean, prior.mean)
    assert_same(again.prior.log_variance, prior.log_variance)
    assert again.prior.modules == prior.modules
    assert again.info("alice") == (80 * 8 // 10, "exact", 0.0, False)
    assert again.verify() == ()


@pytest.mark.parametrize("packed", [False, True])
def test_tasks_are_replaced_renamed_and_deleted(bank, prior, packed):
    first, second = (moved(prior, SELECTED, 1.0, seed) for seed in (1, 2))
    bank.put("alice", first)
    bank.put("carol", first)
    if packed:
        bank.pack()
    bank.put("alice", second)
    assert_same(bank.params("alice"), second)
    bank.rename("alice", "bob")
    assert bank.names() == ("bob", "carol")
    assert_same(bank.params("bob"), second)
    with pytest.raises(BankError, match=r"There is a task 'carol' in .* already; delete it first"):
        bank.rename("bob", "carol")
    bank.delete("bob")
    bank.delete("carol")
    assert bank.names() == ()
    for call in (bank.params, bank.delete, bank.info, lambda name: bank.rename(name, "x")):
        with pytest.raises(BankError, match=r"There is no task 'bob' in .*; known: none yet"):
            call("bob")
    assert bank.verify() == ()


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "..", ".", "a/b", "a\\b", "x" * 300, "x" * 1000, "名前", "e\u0301", "NUL", "\n\0", " "],
)
def test_no_name_leaves_the_folder(bank, prior, tmp_path, name):
    before = {path.name for path in tmp_path.iterdir()}
    bank.put(name, moved(prior, SELECTED, 1.0))
    [file] = files_of(bank.path / "tasks")
    assert file.parent == bank.path / "tasks"
    assert file.name.isascii()
    assert len(file.name) < 100
    assert {path.name for path in tmp_path.iterdir()} == before
    assert sx.Bank.open(bank.path).names() == (name,)
    bank.rename(name, "other")
    bank.rename("other", name)
    bank.pack()
    assert bank.names() == (name,)
    bank.delete(name)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_names_that_a_file_system_takes_for_one(bank, prior):
    names = ("Alice", "alice", "\u00e9", "e\u0301")
    for seed, name in enumerate(names):
        bank.put(name, moved(prior, SELECTED, 1.0, seed))
    assert len({file.name.lower() for file in files_of(bank.path / "tasks")}) == 4
    for seed, name in enumerate(names):
        assert_same(bank.params(name), moved(prior, SELECTED, 1.0, seed))


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "between 1 and 1000 characters, got 0"), ("x" * 1001, "got 1001"), ("\ud800", "not valid Unicode")],
)
def test_names_that_are_none(bank, prior, name, message):
    with pytest.raises(BankError, match=message):
        bank.put(name, prior.mean)


class Pair(eqx.Module):
    left: jax.Array
    right: jax.Array


TREES = {
    "dictionaries": {"a": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "z": jnp.ones(())},
    "lists and tuples": [jnp.ones(2), (jnp.ones(3), None), {"x": [jnp.ones(1)]}],
    "numbers as keys": {0: jnp.ones(2), 10: jnp.ones(3), 9: jnp.ones(1)},
    "a lone array": jnp.ones((2, 2)),
    "half precision": {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(5, jnp.float16)},
    "slashes in keys": {"a/b": jnp.ones(2), "mean": jnp.ones(3), "log_variance": jnp.ones(1)},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tree", TREES)
def test_trees_come_back_without_help(tree, tmp_path, packed):
    prior = sx.Prior.create(TREES[tree], modules=sx.by_leaf(TREES[tree]))
    chosen = prior.modules.names[:1]
    bank = sx.Bank.create(tmp_path / "bank", prior, chosen)
    adapted = moved(prior, chosen, 1.0)
    bank.put("alice", adapted)
    if packed:
        bank.pack()
    again = sx.Bank.open(bank.path)
    assert_same(again.params("alice"), adapted)
    assert again.prior.modules == prior.modules
    assert again.verify() == ()


def test_other_trees_need_their_like(tmp_path):
    params = Pair(jnp.ones(2), jnp.zeros(3))
    bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), "left")
    adapted = Pair(jnp.full(2, 7.0), jnp.zeros(3))
    bank.put("alice", adapted)
    assert_same(bank.params("alice"), adapted)
    blind = sx.Bank.open(bank.path)
    assert blind.names() == ("alice",)
    assert blind.verify() == ()
    blind.put("bob", adapted)
    blind.export("alice", tmp_path / "alice.safetensors")
    for call in (
        lambda: blind.params("alice"),
        lambda: blind.prior,
        lambda: blind.predict(len, ["alice"], jnp.ones(1)),
    ):
        with pytest.raises(BankError, match=r"open the bank with `Bank.open.path, like=params.`"):
            call()
    assert_same(sx.Bank.open(bank.path, like=params).params("bob"), adapted)
    with pytest.raises(BankError, match=r"parameters in `like` have leaves \['w'\], the base has \['left', 'right'\]"):
        sx.Bank.open(bank.path, like={"w": jnp.ones(2)})
    with pytest.raises(BankError, match=r"leaf 'right' of shape \(4,\)"):
        sx.Bank.open(bank.path, like=Pair(jnp.ones(2), jnp.zeros(4)))


def test_parts_of_a_leaf_are_stored_as_such(tmp_path):
    """One attention head of four: a quarter of the leaf, and nothing else."""
    params = {"attention": {"w": jnp.zeros((8, 16)), "b": jnp.zeros(8)}, "out": {"w": jnp.zeros(3)}}
    prior = sx.Prior.create(params, modules=sx.by_axis(params, {"attention": 0}, groups=4))
    bank = sx.Bank.create(tmp_path / "bank", prior, "attention[2]")
    adapted = {
        "attention": {"w": params["attention"]["w"].at[4:6].set(5.0), "b": params["attention"]["b"].at[4:6].set(1.0)},
        "out": params["out"],
    }
    bank.put("alice", adapted)
    assert bank.info("alice").size == 4 * (2 * 16 + 2)
    again = sx.Bank.open(bank.path)
    assert_same(again.params("alice"), adapted)
    outside = {**adapted, "attention": {**adapted["attention"], "b": params["attention"]["b"].at[3:6].set(1.0)}}
    with pytest.raises(BankError, match=r"differ from the base in \['attention/b'\]"):
        bank.put("bob", outside)


def test_learned_rates_are_kept(tmp_path):
    params = {"a": jnp.zeros(2), "b": jnp.zeros(3)}
    prior = sx.Prior.create(params)
    for number, rates in enumerate((jnp.array([0.5, 2.0]), {"a": jnp.ones(2), "b": jnp.full(3, 0.1)})):
        with_rates = sx.Prior(prior.mean, prior.log_variance, prior.modules, rates)
        sx.Bank.create(tmp_path / str(number), with_rates, "a")
        assert_same(sx.Bank.open(tmp_path / str(number)).prior.rates, rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {**p, "w1": p["w1"] + 1e-6}, r"'alice' differ from the base in \['w1'\], outside .* \['b0', 'w0'\]"),
        (lambda p: {**p, "w0": p["w0"] * jnp.nan}, "'alice' are not finite: its adaptation has diverged"),
        (
            lambda p: {**p, "w0": p["w0"][:, :3]},
            r"leaf 'w0' of shape \(1, 3\) and dtype float32, the base one of shape",
        ),
        (lambda p: {**p, "w0": p["w0"].astype(jnp.bfloat16)}, "dtype bfloat16, the base one"),
        (lambda p: {"w0": p["w0"]}, r"have leaves \['w0'\], the base has \['b0',"),
    ],
)
def test_parameters_that_do_not_belong(bank, prior, change, message):
    with pytest.raises(BankError, match=message):
        bank.put("alice", change(moved(prior, SELECTED, 1.0)))
    assert bank.names() == ()


def test_other_modules_can_be_dropped(bank, prior):
    params = moved(prior, SELECTED, 1.0)
    bank.put("alice", {**params, "w1": params["w1"] + 1.0}, strict=False)
    assert_same(bank.params("alice"), params)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path, prior: sx.Bank.create(path, prior, ["w0", "w9"]), r"Unknown modules \['w9'\]; known: "),
        (lambda path, prior: sx.Bank.create(path, prior, []), "At least one module must be chosen"),
        (lambda path, prior: sx.Bank.create(path, prior, "w0", cache=0), "`cache` must be at least 1"),
        (lambda path, prior: check_compression("zip"), "Unknown compression 'zip'; known: float16, bfloat16, int8"),
        (
            lambda path, prior: check_structure("exact", prior, 1.0),
            "Unknown structure 'exact' .* known: diagonal, full",
        ),
    ],
)
def test_banks_that_cannot_be_made(prior, tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "bank", prior)
    assert not list(tmp_path.iterdir())


def test_folders_with_something_in_them_are_left_alone(bank, prior, tmp_path):
    before = {path: path.read_bytes() for path in files_of(tmp_path)}
    with pytest.raises(BankError, match="is not an empty folder; open the bank in it, or name a new folder"):
        sx.Bank.create(bank.path, prior, "w0")
    with pytest.raises(BankError, match="is not an empty folder"):
        sx.Bank.create(bank.path / "index.json", prior, "w0")
    with pytest.raises(BankError, match=r"There is no bank in .* \(index.json is missing\)"):
        sx.Bank.open(tmp_path)
    with pytest.raises(BankError, match="is a file; a bank is a folder"):
        sx.Bank.open(bank.path / "index.json")
    assert {path: path.read_bytes() for path in files_of(tmp_path)} == before


def test_a_folder_keeps_its_permissions(prior, tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    sx.Bank.create(tmp_path / "private", prior, "w0")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_nothing_is_left_of_a_bank_that_could_not_be_made(tmp_path):
    params = {"a": jnp.ones(2, jnp.float8_e4m3fn), "b": jnp.ones(2)}
    with pytest.raises(BankError, match="'mean/a' has dtype float8_e4m3fn, which a bank cannot store"):
        sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), "b")
    assert not list(tmp_path.iterdir())


def test_a_packed_bank_survives_the_loss_of_its_empty_folder(bank, prior):
    bank.put("alice", prior.mean)
    bank.pack()
    (bank.path / "tasks").rmdir()
    again = sx.Bank.open(bank.path)
    assert again.names() == ("alice",)
    again.predict(mlp.apply, ["alice"], jnp.ones((1, 1)))
    again.put("bob", prior.mean)
    assert again.names() == ("alice", "bob")
    assert again.verify() == ()


def test_double_precision(tmp_path):
    with jax.enable_x64(True):
        params = {"a": jnp.full(2, 1 / 3, jnp.float64), "b": jnp.zeros(3, jnp.float32)}
        bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), "a")
        bank.put("alice", {**params, "a": params["a"] + 1e-12})
        assert_same(sx.Bank.open(bank.path).params("alice"), {**params, "a": params["a"] + 1e-12})
    with pytest.raises(BankError, match=r"has parameters of float64: call jax.config.update\('jax_enable_x64', True\)"):
        sx.Bank.open(bank.path).params("alice")


def test_a_delta_of_another_base_is_refused(bank, prior, tmp_path):
    other_prior = sx.Prior.create(prior.mean, modules=prior.modules, variance=2.0)
    other = sx.Bank.create(tmp_path / "other", other_prior, SELECTED)
    other.put("alice", moved(prior, SELECTED, 1.0))
    [file] = files_of(other.path / "tasks")
    (bank.path / "tasks" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(BankError, match="was made for another base; adapt the task anew"):
        bank.params("alice")
    [damage] = bank.verify()
    assert damage.file == bank.path / "tasks" / file.name
    bank.delete("alice")
    other.pack()
    (bank.path / "packed.safetensors").write_bytes((other.path / "packed.safetensors").read_bytes())
    with pytest.raises(BankError, match=r"packed.safetensors was made for another base"):
        bank.names()
    (bank.path / "packed.safetensors").unlink()
    (bank.path / "base.safetensors").write_bytes((other.path / "base.safetensors").read_bytes())
    with pytest.raises(DamagedError, match=r"is not the base that .* was written for"):
        sx.Bank.open(bank.path)


@pytest.mark.parametrize("part", ["index.json", "base.safetensors", "tasks", "packed.safetensors"])
def test_a_flipped_bit_is_found_and_named(bank, prior, part):
    for seed in range(3):
        bank.put(f"task{seed}", moved(prior, SELECTED, 1.0, seed))
    bank.pack()
    for seed in range(3, 6):
        bank.put(f"task{seed}", moved(prior, SELECTED, 1.0, seed))
    assert bank.verify() == ()
    file = files_of(bank.path / part)[1] if part == "tasks" else bank.path / part
    content = file.read_bytes()
    # Every eleventh byte, the first and the last: all kinds of places in header and arrays.
    for position in sorted({*range(0, len(content), 11), 8, len(content) - 1}):
        flip(file, position)
        assert [damage.file for damage in bank.verify()] == [file], position
        file.write_bytes(content)
    assert bank.verify() == ()


def test_damage_is_met_before_it_is_used(bank, prior):
    bank.put("alice", moved(prior, SELECTED, 1.0))
    bank.put("bob", moved(prior, SELECTED, 1.0))
    own = [file for file in files_of(bank.path / "tasks") if file.name.startswith("alice")]
    flip(own[0], -1)
    with pytest.raises(DamagedError, match=r"alice.* is damaged: its content does not match its digest"):
        bank.params("alice")
    with pytest.raises(DamagedError, match="alice"):
        bank.pack()  # Nothing is moved, nothing is lost.
    own[0].write_bytes(b"")
    with pytest.raises(DamagedError, match=r"alice.* is damaged: its header cannot be read"):
        bank.params("alice")
    assert sx.Bank.open(bank.path).names() == ("bob",)
    assert len(bank.verify()) == 1
    bank.delete("alice")
    bank.pack()
    pack = bank.path / "packed.safetensors"
    flip(pack, len(pack.read_bytes()) // 2)
    with pytest.raises(DamagedError, match=r"packed.safetensors is damaged"):
        sx.Bank.open(bank.path).params("bob")
    flip(bank.path / "base.safetensors", -1)
    opened = sx.Bank.open(bank.path)  # Lazy: the arrays have not been looked at.
    with pytest.raises(DamagedError, match=r"base.safetensors is damaged"):
        opened.prior  # noqa: B018
    (bank.path / "base.safetensors").unlink()
    with pytest.raises(BankError, match=r"base.safetensors is missing"):
        sx.Bank.open(bank.path)


@pytest.mark.parametrize(
    "header",
    [b"", b"{}", b"[]", b"[" * 100_000, b'{"__metadata__":{}}', b'{"__metadata__":{"digest":3}}']
    + [
        b'{"__metadata__":{"digest":"0"},"a":' + entry + b"}"
        for entry in (
            b"1",
            b'{"dtype":"F32","shape":[2],"data_offsets":[0,4]}',
            b'{"dtype":"F32","shape":[-1],"data_offsets":[4,0]}',
            b'{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,0]}',
            b'{"dtype":"F32","shape":[1],"data_offsets":[100000,100004]}',
            b'{"dtype":"O","shape":[1],"data_offsets":[0,8]}',
        )
    ],
)
def test_hostile_headers(header, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(DamagedError, match="file is damaged: its header cannot be read"):
        TensorFile.open(path, mapped=True)
    path.write_bytes((1 << 63).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError, match="cut short"):
        TensorFile.open(path, mapped=False)


def test_one_task_is_read_without_the_others(bank, prior):
    for name in ("alice", "bob", "carol"):
        bank.put(name, moved(prior, SELECTED, 1.0))
    for file in files_of(bank.path / "tasks"):
        if not file.name.startswith("bob"):
            file.write_bytes(b"not even a header")
    again = sx.Bank.open(bank.path)
    assert_same(again.params("bob"), moved(prior, SELECTED, 1.0))
    again.predict(mlp.apply, ["bob"], jnp.ones((1, 1)))


def test_nothing_is_unpickled(bank, prior, monkeypatch):
    bank.put("alice", moved(prior, SELECTED, 1.0))

    def refuse(*arguments, **options):
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    again = sx.Bank.open(bank.path)
    again.params("alice")
    again.pack()
    again.params("alice")
    again.export("alice", bank.path.parent / "alice.safetensors")
    assert again.verify() == ()


@pytest.mark.parametrize(
    ("compression", "share", "largest"), [("float16", 0.5, 1e-3), ("bfloat16", 0.5, 1e-2), ("int8", 0.25, 1e-2)]
)
@pytest.mark.parametrize("packed", [False, True])
def test_compression_has_a_measured_error(prior, tmp_path, compression, share, largest, packed):
    bank = sx.Bank.create(tmp_path / "bank", prior, SELECTED, compression=compression)
    exact = moved(prior, SELECTED, 0.3)
    bank.put("alice", exact)
    bank.put("unmoved", prior.mean)
    if packed:
        bank.pack()
    again = sx.Bank.open(bank.path)
    params = again.params("alice")
    lost = sum(float(jnp.sum((params[name] - exact[name]) ** 2)) for name in SELECTED)
    all_moved = sum(float(jnp.sum((exact[name] - prior.mean[name]) ** 2)) for name in SELECTED)
    info = again.info("alice")
    assert info.encoding == compression
    assert info.error == pytest.approx((lost / all_moved) ** 0.5, rel=1e-3)
    assert 0 < info.error < largest
    scales = 8 if compression == "int8" else 0
    assert info.size == 64 * share + scales
    assert_same(again.params("unmoved"), prior.mean)
    assert again.info("unmoved").error == 0
    assert again.verify() == ()


def test_what_does_not_fit_into_half_precision(prior, tmp_path):
    bank = sx.Bank.create(tmp_path / "bank", prior, SELECTED, compression="float16")
    with pytest.raises(BankError, match="do not fit into float16; use 'bfloat16' or none"):
        bank.put("alice", moved(prior, SELECTED, 1e6))


def size_of(path):
    return sum(file.stat().st_size for file in files_of(path))


def test_a_thousand_sinusoid_tasks_take_little_more_than_their_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # Nothing crashes here, and waiting takes long.
    prior = sinusoid_prior(40)
    bank = sx.Bank.create(tmp_path / "bank", prior, SELECTED)
    generator = np.random.default_rng(0)
    for number in range(1000):
        bank.put_part(f"task{number:04d}", [generator.normal(size=shape).astype(np.float32) for shape in (40, (1, 40))])
    bank.pack()
    assert len(bank.names()) == 1000
    assert size_of(bank.path) < 1.05 * 4 * (sum(prior.modules.sizes) + 1000 * 80)
    assert bank.verify() == ()


def test_a_hundred_augmented_omniglot_tasks_take_little_more_than_their_parameters(tmp_path, monkeypatch):
    """The output layer is task-specific: 1,300 of 112,980 parameters."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    prior = sx.Prior.create(ConvNet((28, 28, 1), num_classes=20).init(jax.random.key(0)))
    bank = sx.Bank.create(tmp_path / "bank", prior, "output")
    for number in range(100):
        bank.put(f"alphabet {number}", moved(prior, "output", 1.0, seed=number))
    expected = 4 * (sum(prior.modules.sizes) + 100 * 1300)
    assert size_of(bank.path) < 1.05 * expected
    bank.pack()
    assert size_of(bank.path) < 1.01 * expected
    assert bank.verify() == ()


def test_files_are_readable_by_the_official_package(bank, prior, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    exact = moved(prior, SELECTED, 1.0)
    bank.put("alice", exact)
    bank.export("alice", tmp_path / "alice.safetensors")
    loaded = load_file(tmp_path / "alice.safetensors")
    assert set(loaded) == set(exact)
    for name, array in exact.items():
        np.testing.assert_array_equal(loaded[name], array)
    [own] = files_of(bank.path / "tasks")
    np.testing.assert_array_equal(load_file(own)["value/w0"], exact["w0"])
    bank.pack()
    with safe_open(bank.path / "packed.safetensors", framework="np") as file:
        assert file.metadata()["format"] == "shrinx-pack-1"
    with safe_open(bank.path / "base.safetensors", framework="np") as file:
        assert file.metadata()["digest"] == json.loads((bank.path / "index.json").read_text())["base"]
    half = {"b": np.arange(3, dtype=np.int8), "a": np.ones((2, 3), jnp.bfloat16), "c": np.zeros((), np.float64)}
    write_tensors(tmp_path / "mixed.safetensors", half, {"format": "test"})
    with safe_open(tmp_path / "mixed.safetensors", framework="np") as file:
        assert {name: file.get_slice(name).get_shape() for name in half} == {"a": [2, 3], "b": [3], "c": []}
    again = TensorFile.open(tmp_path / "mixed.safetensors", mapped=True)
    for name, array in half.items():
        np.testing.assert_array_equal(again.array(name), array)


def test_an_export_replaces_nothing_unasked(bank, prior, tmp_path):
    bank.put("alice", prior.mean)
    path = tmp_path / "alice.safetensors"
    path.write_text("precious")
    for call in (bank.export, lambda name, path: bank.export_predictor(mlp.apply, jnp.ones((1, 1)), path)):
        with pytest.raises(BankError, match="is there already; name another file, or pass `replace=True`"):
            call("alice", path)
    assert path.read_text() == "precious"
    bank.export("alice", path, replace=True)
    assert TensorFile.open(path, mapped=True).shape("w1") == (8, 8)


def run_script(tmp_path, *arguments):
    """`bank_processes.py` in a process of its own, which forks before it has threads that would mind."""
    root = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root.parent), str(root)]), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", str(root / "bank_processes.py"), str(tmp_path / "bank"), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_kill_at_any_moment_of_put(tmp_path):
    assert "killed 200 times" in run_script(tmp_path, "kill", "put", "200")


def test_kill_at_any_moment_of_changes(tmp_path):
    assert "killed 60 times" in run_script(tmp_path, "kill", "change", "60")


def test_ten_processes_lose_nothing(tmp_path):
    assert "200 tasks" in run_script(tmp_path, "add", "10", "20")
