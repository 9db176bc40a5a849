"""The bank on disk, whatever happens to its files and to the processes that write them."""

import json
import os
import pickle
import subprocess
import sys
import warnings
import zlib
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import SELECTED, assert_same, files_of, moved

import shrinx as sx
from shrinx.bank import BankError, DamagedError
from shrinx.bank.names import file_name
from shrinx.bank.safetensors import TensorFile, write_tensors
from shrinx.bank.store import Store
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
    assert (damage.file, damage.tasks) == (bank.path / "tasks" / file.name, ("alice",))
    bank.delete("alice")
    other.pack()
    (bank.path / "packed.safetensors").write_bytes((other.path / "packed.safetensors").read_bytes())
    with pytest.warns(UserWarning, match=r"packed.safetensors was made for another base and does not belong"):
        assert bank.names() == ()
    [damage] = bank.verify()
    assert (damage.file, damage.tasks) == (bank.path / "packed.safetensors", ("alice",))
    for call in (bank.params, bank.delete, bank.__contains__):
        with pytest.raises(BankError, match=r"packed.safetensors was made for another base"):
            call("alice")
    with pytest.raises(BankError, match=r"packed.safetensors was made for another base"):
        bank.pack()
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
    assert sx.Bank.open(bank.path).names() == ("alice", "bob")
    assert [damage.tasks for damage in bank.verify()] == [("alice",)]
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


# Every character of the longest is escaped in the file, as twelve bytes.
ODD_NAMES = ("alice", "Alice", 'a "quoted" \\ name', "line\nbreak", "名前", "\U0001f600" * 1000, "task", ",")


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_says_whose_it_is(bank, prior, name, damage):
    bank.put(name, moved(prior, SELECTED, 1.0))
    bank.put("other", moved(prior, SELECTED, 1.0))
    file = bank.path / "tasks" / file_name(name)
    content = file.read_bytes()
    file.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 64]) + content[1:])
    again = sx.Bank.open(bank.path)
    assert again.names() == tuple(sorted((name, "other")))
    assert name in again
    assert again.unnamed() == ()
    assert [(damage.file, damage.tasks) for damage in again.verify()] == [(file, (name,))]
    for call in (again.params, again.info, again.about, lambda name: again.rename(name, "x")):
        with pytest.raises(DamagedError, match="put back a copy of that file, or adapt the task anew, or delete it"):
            call(name)
    assert files_of(bank.path / "tasks") == sorted([file, bank.path / "tasks" / file_name("other")])
    again.put(name, prior.mean)
    assert again.verify() == ()


def test_damaged_names_are_not_believed(bank, prior):
    for name in ("alice", "Bob", "carol"):
        bank.put(name, prior.mean)
    alice, bob, carol = (bank.path / "tasks" / file_name(name) for name in ("alice", "Bob", "carol"))
    alice.write_bytes(bob.read_bytes())  # The file's name is right.
    bob.write_bytes(bob.read_bytes().replace(b'"Bob"', b'"Rob"'))
    carol.write_bytes(b'"task":"alice","task":"\\ud800","task":"\xff","task":"carol"')
    stray = carol.with_name("copy of " + carol.name)
    stray.write_bytes(carol.read_bytes())
    again = sx.Bank.open(bank.path)
    with pytest.warns(UserWarning, match="Tasks may be missing from the list: .* cannot be told") as told:
        assert again.names() == ("alice", "carol")
    assert len(told) == 2
    assert {damage.file for damage in again.unnamed()} == {bob, stray}
    assert all("cannot be told which task it holds; put back a copy of it, or" in d.reason for d in again.unnamed())
    for call in (len, list):
        with pytest.warns(UserWarning, match="may be missing"):
            assert call(again) in (2, ["alice", "carol"])
    assert repr(again).endswith(": at least 2 tasks of b0, w0)")
    assert {damage.file: damage.tasks for damage in again.verify()} == {
        alice: ("alice",),
        bob: (),
        carol: ("carol",),
        stray: (),
    }
    assert "Bob" in again  # Whoever knows the name can still ask for it, and remove it.
    again.delete("Bob")
    again.delete("carol")
    stray.unlink()
    assert again.names() == ("alice",)


def test_files_that_cannot_be_read_keep_no_other_from_it(bank, prior):
    """As a directory, since permissions mean nothing to the superuser; it is the same kind of error."""
    for name in ("alice", "Bob"):
        bank.put(name, prior.mean)
        file = bank.path / "tasks" / file_name(name)
        file.unlink()
        file.mkdir()
    bank.put("carol", moved(prior, SELECTED, 1.0))
    odd = bank.path / "tasks" / os.fsdecode(b"\xff.safetensors")
    odd.mkdir()
    dangling = bank.path / "tasks" / "dangling.safetensors"
    dangling.symlink_to("nowhere")
    (bank.path / "packed.safetensors").mkdir()
    again = sx.Bank.open(bank.path)
    with pytest.warns(UserWarning, match="may be missing") as told:
        assert again.names() == ("alice", "carol")
    assert [str(warning.message).partition(" cannot be read ")[2] for warning in told] == [
        "(Is a directory).",
        "(No such file or directory).",
        "(Is a directory).",
        "(Is a directory).",
    ]
    assert [damage.file.name for damage in again.unnamed()] == [
        file.name,
        dangling.name,
        odd.name,
        "packed.safetensors",
    ]
    assert {damage.file.name: damage.tasks for damage in again.verify()} == {
        file_name("alice"): ("alice",),
        file_name("Bob"): (),
        odd.name: (),
        dangling.name: (),
        "packed.safetensors": (),
    }
    with pytest.raises(BankError, match=r"alice.* cannot be read \(Is a directory\)"):
        again.params("alice")
    assert_same(again.params("carol"), moved(prior, SELECTED, 1.0))


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(bank, prior):
    bank.put("alice", prior.mean)
    bank.pack()
    (bank.path / "tasks").rmdir()
    (bank.path / "tasks").write_bytes(b"")
    for call in (bank.names, bank.unnamed, bank.verify, bank.pack):
        with pytest.raises(NotADirectoryError, match="tasks"):
            call()


def packed_bank(bank, prior, names=("alice", "bob", "carol")):
    """All in one file, each with parameters of its own; how they are found there."""
    for seed, name in enumerate(names):
        bank.put(name, moved(prior, SELECTED, 1.0, seed))
        bank.describe(name, {"pitch": np.full(3, seed, np.float32)})
    bank.pack()
    return bank.path / "packed.safetensors"


def flip_row(bank, name, pack):
    """Damage what the pack has of a task."""
    row = np.asarray(bank.params(name)["w0"]).tobytes()
    assert pack.read_bytes().count(row) == 1
    flip(pack, pack.read_bytes().index(row) + 5)


CHANGES = {
    "delete another": (lambda bank: bank.delete("carol"), ("alice", "bob")),
    "rename another": (lambda bank: bank.rename("carol", "dave"), ("alice", "bob", "dave")),
    "delete the damaged": (lambda bank: bank.delete("alice"), ("bob", "carol")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_row_of_a_pack_keeps_no_other_from_anything(bank, prior, change):
    pack = packed_bank(bank, prior)
    flip_row(bank, "alice", pack)
    again = sx.Bank.open(bank.path)
    assert (again.names(), again.unnamed()) == (("alice", "bob", "carol"), ())
    assert [(damage.file, damage.tasks) for damage in again.verify()] == [(pack, ("alice",))]
    before = pack.read_bytes()
    for call in (again.pack, lambda: again.params("alice"), lambda: again.rename("alice", "x")):
        with pytest.raises(DamagedError, match="task 'alice' does not match its digest; put back a copy of that file"):
            call()
    assert pack.read_bytes() == before
    call, left = CHANGES[change]
    call(again)
    assert again.names() == left
    assert_same(again.params("bob"), moved(prior, SELECTED, 1.0, 1))
    damaged = ("alice",) if "alice" in left else ()
    assert [damage.tasks for damage in again.verify()] == [damaged] * len(damaged)
    for name in damaged:  # It is no better than before.
        with pytest.raises(DamagedError, match="task 'alice' does not match its digest"):
            again.params(name)
        again.delete(name)
    again.pack()
    assert again.verify() == ()


def test_what_is_adapted_anew_takes_the_place_of_a_damaged_row(bank, prior):
    pack = packed_bank(bank, prior)
    flip_row(bank, "alice", pack)
    bank.put("alice", prior.mean)
    [damage] = bank.verify()
    assert (damage.file, damage.tasks) == (pack, ())
    assert damage.reason.endswith("but all of its tasks can be read: pack the bank anew.")
    bank.pack()
    assert bank.verify() == ()
    assert_same(bank.params("alice"), prior.mean)


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_a_pack_that_cannot_be_read_is_left_as_it_is(bank, prior, damage):
    pack = packed_bank(bank, prior)
    whole = pack.read_bytes()
    bank.put("dave", moved(prior, SELECTED, 1.0, 7))
    bank.put("alice", prior.mean)
    if damage is None:  # The list of tasks, which is the last thing in it.
        flip(pack, -1)
    else:
        pack.write_bytes(damage)
    before = {file: file.read_bytes() for file in files_of(bank.path)}
    again = sx.Bank.open(bank.path)
    with pytest.warns(
        UserWarning, match="Tasks may be missing from the list: .*packed.safetensors is damaged: .* remove"
    ):
        assert again.names() == ("alice", "dave")
    assert [damage.file for damage in again.unnamed()] == [pack]
    assert [damage.file for damage in again.verify()] == [pack]
    assert "at least 2 tasks" in repr(again)
    assert "dave" in again
    assert_same(again.params("dave"), moved(prior, SELECTED, 1.0, 7))
    again.predict(mlp.apply, ["dave"], jnp.ones((1, 1)))
    refused = {
        "pack": again.pack,
        "in": lambda: "bob" in again,
        "params": lambda: again.params("bob"),
        "a task of its own, an older version of which may be there": lambda: again.delete("alice"),
        "delete": lambda: again.delete("bob"),
        "rename": lambda: again.rename("dave", "erin"),
        "rename to one that may be there": lambda: again.rename("dave", "bob"),
    }
    for call in refused.values():
        with pytest.raises(
            DamagedError, match=r"packed.safetensors is damaged: .*; put back a copy of that file, or rem"
        ):
            call()
    assert {file: file.read_bytes() for file in files_of(bank.path)} == before
    again.put("erin", prior.mean)
    pack.write_bytes(whole)
    assert again.names() == ("alice", "bob", "carol", "dave", "erin")
    assert again.verify() == ()


HEADERS = {
    "arrays of no task": (b'"0/value/b0"', b'"8/value/b0"', "the arrays of task 'alice' are not those listed"),
    "other arrays": (b'"0/about/pitch"', b'"0/about/qitch"', "the arrays of task 'alice' are not those listed"),
    "other shapes": (b"[3,1,8]", b"[3,8,1]", "the arrays of task 'alice' are not those listed"),
    "other dtypes": (b'"F32"', b'"I32"', "its header cannot be read"),
    "the arrays of others": (b"[132,228]", b"[36,132] ", "task 'alice' does not match its digest"),
    "no digests": (b'"0/digest"', b'"0/ligest"', "task 'alice' is listed but not there"),
}


@pytest.mark.parametrize("damage", HEADERS)
def test_a_damaged_header_of_a_pack_is_neither_believed_nor_replaced(bank, prior, damage):
    """The digests of rows know nothing of it."""
    pack = packed_bank(bank, prior)
    bank.put("carol", prior.mean)
    before, after, message = HEADERS[damage]
    content = pack.read_bytes()
    assert before in content
    pack.write_bytes(content.replace(before, after))
    again = sx.Bank.open(bank.path)
    assert [damage.file for damage in again.verify()] == [pack]
    for call in (again.params, again.about, again.info):
        with pytest.raises(DamagedError, match=message):
            call("alice")
    damaged = {file: file.read_bytes() for file in files_of(bank.path)}
    changes = [partial(again.delete, name) for name in ("bob", "carol")]
    changes += [partial(again.rename, name, "dave") for name in ("bob", "carol")]
    for call in (again.pack, *changes):
        with pytest.raises(DamagedError, match="put back a copy of that file, or "):
            call()
    assert {file: file.read_bytes() for file in files_of(bank.path)} == damaged
    pack.write_bytes(content)
    assert again.verify() == ()


@pytest.mark.parametrize(
    ("damage", "mended"),
    [
        (lambda content: content + b"\n", True),
        (lambda content: content.replace(b"shrinx-pack-1", b"shrinx-pack-3"), True),
        (lambda content: content.replace(b'"0/value/w0"', b'"0/value/b0"'), False),
    ],
)
def test_packing_anew_mends_what_concerns_no_task(bank, prior, damage, mended):
    pack = packed_bank(bank, prior)
    pack.write_bytes(damage(pack.read_bytes()))
    [found] = bank.verify()
    assert found.reason.endswith("pack the bank anew.") == mended
    assert (found.tasks == ()) == mended
    if mended:
        bank.pack()
        assert bank.verify() == ()
        assert bank.about("bob")["pitch"].tolist() == [1, 1, 1]


def relist(pack, change=lambda listing: listing, **arrays):
    """Write a pack anew with another list of tasks and other arrays."""
    file = TensorFile.open(pack, mapped=False)
    tensors = {key: file.array(key) for key in file.entries} | arrays
    listing = change(json.loads(zlib.decompress(tensors["listing"].tobytes())))
    tensors["listing"] = np.frombuffer(zlib.compress(json.dumps(listing).encode()), np.uint8)
    write_tensors(pack, tensors, {key: value for key, value in file.metadata.items() if key != "digest"})


def test_packs_of_earlier_versions(bank, prior):
    """Without the arrays in the list of tasks."""
    pack = packed_bank(bank, prior)
    relist(pack, lambda listing: [{key: group[key] for key in ("encoding", "names", "errors")} for group in listing])
    again = sx.Bank.open(bank.path)
    assert again.verify() == ()
    assert_same(again.params("bob"), moved(prior, SELECTED, 1.0, 1))
    whole = pack.read_bytes()
    flip_row(bank, "alice", pack)
    assert again.names() == ("alice", "bob", "carol")
    assert [damage.tasks for damage in again.verify()] == [("alice",)]
    assert_same(again.params("bob"), moved(prior, SELECTED, 1.0, 1))
    for call in (again.pack, lambda: again.delete("carol")):  # Its header may be damaged too: who knows?
        with pytest.raises(DamagedError, match="its content does not match its digest; put back a copy of that file"):
            call()
    again.put("alice", prior.mean)
    assert [(damage.tasks, damage.reason.split("; ")[-1]) for damage in again.verify()] == [
        ((), "put back a copy of it.")
    ]
    pack.write_bytes(whole)
    again.delete("carol")
    again.pack()
    assert again.verify() == ()
    assert again.names() == ("alice", "bob")


@pytest.mark.parametrize("part", ["index.json", "base.safetensors", "tasks", "packed.safetensors"])
def test_with_a_flipped_bit_everything_is_right_or_refused(bank, prior, part):
    pack = packed_bank(bank, prior, ("alice", "bob"))
    bank.put("carol", moved(prior, SELECTED, 1.0, 2))
    file = files_of(bank.path / part)[0] if part == "tasks" else bank.path / part
    expected = {name: (bank.params(name), bank.about(name), bank.info(name)) for name in bank.names()}
    content, refused = file.read_bytes(), 0
    for position in range(0, len(content), 7 if pack == file else 5):
        flip(file, position)
        try:
            with warnings.catch_warnings(action="ignore"):
                again = sx.Bank.open(bank.path)
                assert set(again) <= set(expected)
                repr(again)
        except BankError:
            refused += 1
            file.write_bytes(content)
            continue
        for name, right in expected.items():
            try:
                found = (again.params(name), again.about(name), again.info(name))
            except BankError:
                refused += 1
                continue
            assert_same(found[:2], right[:2])
            assert found[2] == right[2]
        file.write_bytes(content)
    assert refused
    assert bank.verify() == ()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"task": "\ud800"}, "is the file of another task"),
        ({"error": "large"}, "does not say how task 'alice' is stored"),
        ({"encoding": "zip"}, "does not fit the modules of the bank: it is encoded as 'zip'"),
    ],
)
def test_hostile_tasks(bank, prior, metadata, message):
    """Files of which every byte is as it was written."""
    bank.put("alice", prior.mean)
    [file] = files_of(bank.path / "tasks")
    opened = TensorFile.open(file, mapped=False)
    write_tensors(file, {key: opened.array(key) for key in opened.entries}, {**opened.metadata, **metadata})
    [damage] = bank.verify()
    assert damage.tasks == ("alice",)
    assert message in damage.reason
    with pytest.raises(DamagedError, match="alice"):
        bank.params("alice")
    bank.delete("alice")
    assert bank.verify() == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda listing: 3,
        lambda listing: {"names": ["alice"]},
        lambda listing: [{**listing[0], "errors": ["large"]}],
        lambda listing: [{**listing[0], "names": ["\ud800"]}],
        lambda listing: [{**listing[0], "names": ["alice", "bob"]}],
        lambda listing: [{**listing[0], "encoding": ["exact"]}],
        lambda listing: [{**listing[0], "arrays": None}],
        lambda listing: [{}, *listing],
        lambda listing: [{**listing[0], "names": [], "errors": []}, *listing],
    ],
)
def test_hostile_lists_of_tasks(bank, prior, change):
    pack = packed_bank(bank, prior, ("alice",))
    relist(pack, change)
    [damage] = bank.verify()
    assert damage.file == pack
    with pytest.raises(DamagedError, match=r"packed.safetensors is damaged|does not fit the modules of the bank"):
        bank.params("alice")
    with pytest.raises(BankError):
        bank.delete("bob")
    repr(bank)


def test_hostile_arrays(bank, prior):
    """Rows with nothing to check them by are no better for being written again; nor are arrays of no task lost."""
    pack = packed_bank(bank, prior, ("alice", "bob"))
    content = pack.read_bytes()
    relist(pack, precious=np.ones(3, np.float32))
    assert bank.verify() == ()
    for call in (bank.pack, lambda: bank.delete("bob")):
        with pytest.raises(DamagedError, match="its arrays are not those listed"):
            call()
    pack.write_bytes(content)

    def undigested(listing):
        arrays = [[key, kind, [2, 0] if key == "digest" else shape] for key, kind, shape in listing[0]["arrays"]]
        return [{**listing[0], "arrays": arrays}]

    relist(pack, undigested, **{"0/digest": np.zeros((2, 0), np.uint8)})
    assert [damage.tasks for damage in bank.verify()] == [("alice", "bob")]
    with pytest.raises(DamagedError, match="the arrays of task 'alice' are not those listed"):
        bank.delete("bob")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rb"[1, 1]", rb"[0, 0]"),
        (rb"\"labels\": [5]", rb"\"labels\": [9]"),
        (rb"\"dict\"", rb"\"duct\""),
        (rb"\"leaf\"", rb"\"lead\""),
    ],
)
def test_hostile_bases(bank, before, after):
    base = bank.path / "base.safetensors"
    content = base.read_bytes()
    assert before in content
    base.write_bytes(content.replace(before, after))
    with pytest.raises(DamagedError, match=r"base.safetensors is damaged"):
        sx.Bank.open(bank.path)


def test_a_hostile_index(bank):
    (bank.path / "index.json").write_bytes(b"[" * 100_000)
    with pytest.raises(DamagedError, match=r"index.json is damaged: it cannot be read"):
        sx.Bank.open(bank.path)


def test_a_digest_that_is_none(tmp_path):
    header = b'{"__metadata__":{"digest":"' + rb"\ud800" * 64 + b'"}}'
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DamagedError, match="file is damaged: its content does not match its digest"):
        TensorFile.open(tmp_path / "file", mapped=False).check()


def test_a_pack_that_could_not_be_read_for_a_moment(bank, prior, monkeypatch):
    bank.put("alice", prior.mean)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "signature", lambda self, name: None)
        bank.predict(mlp.apply, ["alice"], jnp.ones((1, 1)))
    bank.delete("alice")
    with pytest.raises(BankError, match="There is no task 'alice'"):
        bank.predict(mlp.apply, ["alice"], jnp.ones((1, 1)))


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
