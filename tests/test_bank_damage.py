"""The bank on disk, whatever happens to its files and to the processes that write them."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from bank_models import SELECTED, assert_same, files_of, moved

import shrinx as sx
from shrinx.bank import BankError, DamagedError
from shrinx.bank.safetensors import TensorFile
from shrinx.models import mlp


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    path.write_bytes(content)


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
