"""The files of a bank: how small they are, and who else can read them."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import SELECTED, assert_same, files_of, moved, sinusoid_prior

import shrinx as sx
from shrinx.bank import BankError
from shrinx.bank.safetensors import TensorFile, write_tensors
from shrinx.models import mlp
from shrinx.models.conv import ConvNet


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
