"""`shrinx bank` and `shrinx adapt`, as a newcomer types them."""

import json
import os
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bank_models import assert_same
from data_files import miniimagenet_folder, omniglot_folder

import shrinx as sx
from shrinx.bank.errors import BankError
from shrinx.bank.from_run import read_data, setup_of_model
from shrinx.cli import main
from shrinx.experiments import EXPERIMENTS, find_experiment
from shrinx.models import mlp
from shrinx.runs.meta import draw

TOY = ["--num-updates", "4", "--inner-steps", "3", "--adapt-steps", "2", "--num-test-tasks", "3"]


pytestmark = pytest.mark.usefixtures("relaxed")


@pytest.fixture(scope="module")
def finished(relaxed, tmp_path_factory):
    """A finished run, a bank made from it, one that was not, and data of tasks."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(["run", "sinusoid", "--seeds", "2", "--out", str(folder / "run"), *TOY]) == 0
    assert main(["bank", "create", str(folder / "voices"), "--run", str(folder / "run"), "--modules", "w0", "b0"]) == 0
    sx.Bank.create(folder / "plain", sx.Bank.open(folder / "voices").prior, "w0")
    x = np.random.default_rng(0).uniform(-5, 5, (3, 10, 1))
    np.savez(folder / "alice.npz", x=x[0], y=np.sin(x[0]))
    np.savez(folder / "three.npz", x=x, y=2 * np.sin(x))
    np.savez(folder / "wrong.npz", a=np.ones(3))
    np.savez(folder / "ragged.npz", x=x[0], y=x[0, :5])
    np.savez(folder / "complex.npz", x=x[0] + 1j, y=x[0])
    np.savez(folder / "words.npz", x=x[0].astype(str), y=x[0])
    np.savez(folder / "vast.npz", x=np.full((10, 1), 1e300), y=x[0])
    return folder


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """A copy of all that, which the commands are typed in."""
    shutil.copytree(finished, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_from_a_run_to_a_checkpoint(folder, capsys):
    assert main(["bank", "create", "more", "--run", "run", "--modules", "w0", "b0"]) == 0
    assert "more: 80 of 1,761 parameters per task (b0, w0)." in capsys.readouterr().out
    assert main(["adapt", "--base", "voices", "--task", "alice", "--data", "alice.npz", "--max-steps", "200"]) == 0
    assert "alice: loss" in capsys.readouterr().out
    assert main(["adapt", "--base", "voices", "--task", "a", "b", "c", "--data", "three.npz", "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.count("not converged (raise --max-steps) after 1 steps") == 3
    again = ["adapt", "--base", "voices", "--task", "d", "alice", "--data", "three.npz"]
    assert main(again) == 2
    assert "voices has a task 'alice' already; name another, or add --replace." in capsys.readouterr().err
    again = ["adapt", "--base", "voices", "--task", "alice", "--data", "alice.npz", "--max-steps", "1", "--replace"]
    assert main(again) == 0
    assert "alice: loss" in capsys.readouterr().out
    assert main(["bank", "rename", "voices", "a", "../\x1b[31mred"]) == 0
    assert main(["bank", "delete", "voices", "b"]) == 0
    assert main(["bank", "pack", "voices"]) == 0
    assert main(["bank", "list", "voices"]) == 0
    out = capsys.readouterr().out
    assert "3 tasks in voices." in out
    assert "alice" in out
    assert "320 bytes, exact" in out
    assert "\x1b" not in out
    assert main(["bank", "verify", "voices"]) == 0
    assert "voices is as it was written." in capsys.readouterr().out
    assert main(["bank", "export", "voices", "alice", "--out", "alice.safetensors"]) == 0
    bank = sx.Bank.open("voices")
    assert bank.model["experiment"] == "sinusoid"
    assert bank.names() == ("../\x1b[31mred", "alice", "c")
    loaded = np.load("alice.npz")
    outputs = bank.predict(mlp.apply, ["alice"] * 10, loaded["x"])
    before = mlp.apply(bank.prior.mean, jax.numpy.asarray(loaded["x"]))
    assert np.mean((outputs - loaded["y"]) ** 2) < np.mean((before - loaded["y"]) ** 2)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "speech"])
def test_tasks_of_every_experiment_are_read_from_a_file(name, tmp_path, monkeypatch):
    photographs = name == "miniimagenet"
    monkeypatch.setenv("SHRINX_DATA", str((miniimagenet_folder if photographs else omniglot_folder)(tmp_path)))
    experiment = find_experiment(name)
    config = experiment.config(experiment.algorithms[0], experiment.presets[0])
    # The generated classes have three photographs each.
    setup = experiment.module.setup(replace(config, queries=2) if photographs else config)
    split = None if setup.split is None else jax.tree.map(jnp.asarray, setup.split(3))
    support = jax.tree.map(lambda leaf: leaf[:2], draw(setup.test_tasks, jax.random.key(0), split).support)
    names = support if isinstance(support, dict) else ("x", "y")
    np.savez(tmp_path / "two.npz", **dict(zip(names, jax.tree.leaves(support), strict=False)))
    assert_same(read_data(tmp_path / "two.npz", setup, 2), support)


@pytest.mark.parametrize(
    "change",
    [
        {"x": np.full((20, 28, 28, 1), 0.5, np.float32)},
        {"x": np.full((20, 28, 28, 1), 256)},
        {"x": np.full((20, 28, 28, 1), np.nan)},
        {"y": np.full(20, 1.5)},
        {"x": np.full((20, 28, 28, 1), 1 + 0j)},
        {},
    ],
)
def test_images_are_whole_numbers_as_in_the_data(tmp_path, monkeypatch, change):
    monkeypatch.setenv("SHRINX_DATA", str(omniglot_folder(tmp_path)))
    setup = find_experiment("aug-omniglot").module.setup(find_experiment("aug-omniglot").config("reptile", "quick"))
    arrays = {"x": np.full((20, 28, 28, 1), 255.0), "y": np.arange(20.0)}
    np.savez(tmp_path / "task.npz", **(arrays | change))
    if change:
        with pytest.raises(BankError, match=r"array '.' of .* with values that .*int.* cannot hold"):
            read_data(tmp_path / "task.npz", setup, None)
    else:
        images, labels = read_data(tmp_path / "task.npz", setup, None)
        assert (images.dtype, int(images.max()), labels.tolist()) == (jnp.uint8, 255, list(range(20)))


def test_modules_chosen_by_variances_that_have_not_parted_are_doubted(folder, capsys):
    result = json.loads((folder / "run" / "result.json").read_text())
    for module in result["modules"]:
        module |= {"variance": 6.0 if module["name"] == "w0" else 5.0, "selected": module["name"] == "w0"}
    (folder / "run" / "result.json").write_text(json.dumps(result))
    assert main(["bank", "create", "doubtful", "--run", "run"]) == 0
    assert "The variances of run have hardly parted" in capsys.readouterr().err
    assert main(["bank", "create", "named", "--run", "run", "--modules", "w0"]) == 0
    assert "hardly parted" not in capsys.readouterr().err


@pytest.mark.parametrize("rate", [None, 0.02])
def test_a_bank_of_a_run_that_averages_does_so_too(folder, rate):
    model = json.loads((folder / "voices" / "index.json").read_text())["model"]
    model["config"]["average"] = 4
    prior = sx.Bank.open("voices").prior
    sx.Bank.create(folder / "averaging", prior, ["w0", "b0"], model=model)
    options = [] if rate is None else ["--learning-rate", str(rate)]
    command = ["adapt", "--base", "averaging", "--task", "alice", "--data", "alice.npz", "--max-steps", "6", *options]
    assert main(command) == 0
    setup = setup_of_model(model)
    assert isinstance(setup.learner.solver, sx.ProximalGD)
    solver = setup.learner.solver if rate is None else replace(setup.learner.solver, learning_rate=rate)
    expected = sx.adapt(
        setup.loss_fn,
        prior,
        read_data(folder / "alice.npz", setup, None),
        sx.Averaged(solver, 4),
        num_steps=6,
        trainable=("w0", "b0"),
    )
    for name, leaf in sx.Bank.open("averaging").params("alice").items():
        np.testing.assert_allclose(leaf, expected.params[name], rtol=1e-6, atol=1e-7)


def test_every_seed_has_its_model(folder):
    banks = []
    for seed in ("0", "1"):
        assert main(["bank", "create", seed, "--run", "run", "--seed", seed, "--compression", "int8"]) == 0
        banks.append(sx.Bank.open(seed))
    assert banks[0].compression == "int8"
    assert not np.array_equal(banks[0].prior.mean["w1"], banks[1].prior.mean["w1"])


def test_damage_has_its_exit_code(folder, capsys):
    assert main(["bank", "create", "sure", "--run", "run", "--posterior", "diagonal"]) == 0
    assert main(["adapt", "--base", "sure", "--task", "alice", "--data", "alice.npz", "--max-steps", "5"]) == 0
    assert main(["bank", "list", "sure"]) == 0
    assert ", posterior" in capsys.readouterr().out
    [file] = (folder / "sure" / "tasks").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert main(["bank", "verify", "sure"]) == 1
    out = capsys.readouterr().out
    assert f"{file.name}: " in out
    assert f"{file.name}: damaged task alice\n" in out
    assert "1 damaged file: put back a copy, or adapt damaged tasks anew, or delete them.\n" in out
    assert main(["bank", "list", "sure"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("alice                    damaged: sure/tasks/alice.")
    assert "put back a copy of that file, or adapt the task anew, or delete it.\n" in out
    assert out.endswith("1 task in sure, 1 of them damaged.\n")
    again = ["adapt", "--base", "sure", "--task", "alice", "--data", "alice.npz", "--max-steps", "5"]
    assert main(again) == 2  # Damaged or not: it is there.
    assert "sure has a task 'alice' already" in capsys.readouterr().err
    assert main([*again, "--replace"]) == 0
    assert main(["bank", "verify", "sure"]) == 0


def test_damage_of_tasks_nobody_knows_is_listed(folder, capsys, recwarn):
    bank = sx.Bank.open("voices")
    for name in ("bob", "red\x1b[31m", "carol, dave"):
        bank.put(name, bank.prior.mean)
    bank.pack()
    bank.put("alice", bank.prior.mean)
    (folder / "voices" / "tasks" / os.fsdecode(b"\xff\x1b[31m.safetensors")).write_bytes(b"")
    pack = folder / "voices" / "packed.safetensors"
    content = bytearray(pack.read_bytes())
    content[content.index(np.asarray(bank.prior.mean["w0"]).tobytes()) + 3] ^= 1
    pack.write_bytes(content)
    assert main(["bank", "list", "voices"]) == 1
    listed = capsys.readouterr().out
    assert "\x1b" not in listed
    assert listed.count("damaged: voices/packed.safetensors is damaged: task ") == 1
    assert (
        "of unknown name          damaged: 'voices/tasks/\\udcff\\x1b[31m.safetensors is damaged: it cannot" in listed
    )
    assert "4 tasks in voices, 1 of them damaged." in listed
    assert main(["bank", "verify", "voices"]) == 1
    verified = capsys.readouterr().out
    assert "\x1b" not in verified
    assert "voices/packed.safetensors: damaged task " in verified
    pack.write_bytes(content[:-1])
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["bank", "list", "voices"]) == 1
    listed = capsys.readouterr().out
    assert "alice                           320 bytes, exact\n" in listed
    assert "of unknown name          damaged: voices/packed.safetensors is damaged: " in listed
    assert listed.endswith("1 task in voices.\n")
    commands = ["delete voices bob", "delete voices alice", "rename voices alice erin", "pack voices"]
    for command in (*(f"bank {command}" for command in commands), "adapt --base voices --task bob --data alice.npz"):
        assert main(command.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("shrinx: voices/packed.safetensors is damaged: ")
        assert error.endswith("tasks with files of their own stay.\n")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not recwarn.list


def test_what_is_deleted_while_it_is_listed_is_not_damaged(folder, capsys, monkeypatch):
    bank = sx.Bank.open("voices")
    for name in ("alice", "bob"):
        bank.put(name, bank.prior.mean)
    info = sx.Bank.info

    def slowly(self, name):
        if name == "alice":
            bank.delete("alice")
        return info(self, name)

    monkeypatch.setattr(sx.Bank, "info", slowly)
    assert main(["bank", "list", "voices"]) == 0
    assert capsys.readouterr().out.endswith("320 bytes, exact\n1 task in voices.\n")


def test_settings_of_another_version_are_named():
    model = {"experiment": "sinusoid", "algorithm": "sigma-reptile", "preset": "quick", "config": {"wisdom": 3}}
    with pytest.raises(BankError, match=r"those of another shrinx version"):
        setup_of_model(model)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bank create voices --run nowhere", "nowhere/config.json does not exist"),
        ("bank create run --run run", "run is not an empty folder; name a new one for the bank"),
        ("bank create voices --run run", "There is a bank in voices already; open it with `Bank.open('voices')`, or"),
        ("bank create other --run run --seed 2", "run has seeds 0 to 1, there is no 2"),
        ("bank create other --run run --modules w7", "Unknown modules ['w7']"),
        ("adapt --base voices --task a --data alice.npz --speaker 1", "`--speaker` is for voices; the bank in voices"),
        ("say --bank voices --voice a --digits 1 a.wav", "The bank in voices holds no voices; make one from a run of"),
        ("bank list run", "There is no bank in run (index.json is missing)"),
        ("bank verify run", "There is no bank in run"),
        ("bank verify nowhere", "There is no bank in nowhere"),
        ("bank list alice.npz", "alice.npz is a file; a bank is a folder"),
        ("bank delete voices carol", "There is no task 'carol' in voices; known: none yet"),
        ("bank export voices carol --out alice.npz", "alice.npz is there already; name another file, or add --replace"),
        ("adapt --base voices --task a --data nothing.npz", "nothing.npz does not exist"),
        ("adapt --base voices --task a --data run/config.json", "run/config.json is no file of arrays"),
        ("adapt --base voices --task a --data three.npz", "'x' of shape (3, 10, 1); expected one like (10, 1)"),
        ("adapt --base voices --task a b --data three.npz", "There are 2 names and data of 3 tasks"),
        ("adapt --base voices --task a b --data alice.npz", "'x' of shape (10, 1); expected one like (3, 10, 1)"),
        ("adapt --base voices --task a --data wrong.npz", "holds the arrays ['a']; the experiment's tasks are made of"),
        ("adapt --base voices --task a --data ragged.npz", "arrays of different lengths: 'x' (10, 1), 'y' (5, 1)"),
        ("adapt --base voices --task a --data complex.npz", "'x' of complex128 with values that float32 cannot hold"),
        ("adapt --base voices --task a --data vast.npz", "'x' of float64 with values that float32 cannot hold"),
        ("adapt --base voices --task a --data words.npz", "values that float32 cannot hold, which the experiment's"),
        ("adapt --base voices --task a --data alice.npz --learning-rate 1e9", "is not finite for ['a']: not stored"),
        ("adapt --base voices --task a --data alice.npz --learning-rate -1", "`learning_rate` must be positive"),
        ("adapt --base voices --task a --data alice.npz --max-steps 0", "`max_steps` must be at least 1, got 0"),
        ("adapt --base plain --task a --data alice.npz", "was not made from a run, and does not say which loss"),
    ],
)
def test_one_sentence_for_every_mistake(folder, capsys, command, message):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    (sentence,) = (line for line in error.splitlines() if not line.startswith("steps "))
    assert sentence.startswith("shrinx: ")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
