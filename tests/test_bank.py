"""The bank on disk: what goes in comes out, and nothing else is touched."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from bank_models import SELECTED, assert_same, files_of, moved

import shrinx as sx
from shrinx.bank import BankError
from shrinx.bank.delta import check_compression
from shrinx.bank.posterior import check_structure
from shrinx.models import mlp


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


@pytest.mark.parametrize("packed", [False, True])
def test_a_bank_is_a_collection_of_names(bank, prior, packed):
    assert (len(bank), list(bank), "alice" in bank) == (0, [], False)
    assert bank  # In a condition it is a bank, not its tasks.
    assert repr(bank) == f"Bank('{bank.path}': 0 tasks of b0, w0)"
    for name in ("bob", "alice"):
        bank.put(name, prior.mean)
        assert name in bank
    if packed:
        bank.pack()
    assert (len(bank), list(bank), bank.unnamed()) == (2, ["alice", "bob"], ())
    again = sx.Bank.open(bank.path)
    assert "alice" in again
    assert not any(name in again for name in ("Alice", "", "x" * 1001, "\ud800", None, 3, ("alice",), b"alice"))
    bank.delete("alice")  # As another process would.
    assert "alice" not in again
    assert repr(again) == f"Bank('{bank.path}': 1 task of b0, w0)"


def test_no_more_modules_are_shown_than_one_can_read(tmp_path):
    params = {f"layer{number}": jnp.ones(1) for number in range(8)}
    bank = sx.Bank.create(tmp_path / "bank", sx.Prior.create(params), [f"layer{number}" for number in range(7)])
    assert repr(bank).endswith(": 0 tasks of layer0, layer1, layer2, layer3, layer4 and 2 more)")


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


def test_a_bank_below_a_file(prior, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BankError, match=r"Cannot create .*file/bank: "):
        sx.Bank.create(tmp_path / "file" / "bank", prior, "w0")


def test_folders_with_something_in_them_are_left_alone(bank, prior, tmp_path):
    before = {path: path.read_bytes() for path in files_of(tmp_path)}
    with pytest.raises(
        BankError, match=r"There is a bank in .* already; open it with `Bank.open\('.*/bank'\)`, or name"
    ):
        sx.Bank.create(bank.path, prior, "w0")
    for occupied in (tmp_path, bank.path / "index.json"):
        with pytest.raises(BankError, match="is not an empty folder; name a new one for the bank"):
            sx.Bank.create(occupied, prior, "w0")
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
