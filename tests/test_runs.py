"""Runs: the command line, the folder, interruption and resumption."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import compiled_once
import jax.numpy as jnp
import numpy as np
import pytest
from data_files import miniimagenet_folder, omniglot_folder

from shrinx import cli
from shrinx.cli import main
from shrinx.experiments import EXPERIMENTS, find_experiment
from shrinx.models.conv import ConvNet
from shrinx.runs import checkpoint, training
from shrinx.runs.errors import UserError
from shrinx.runs.folder import Request, RunFolder, environment, read_metrics
from shrinx.runs.progress import sparkline
from shrinx.runs.search import Search
from shrinx.runs.statistics import half_width, summarise

DEFAULT_STUDY = "sinusoid-sigma-maml"
TOY = ["--num-updates", "4", "--inner-steps", "3", "--adapt-steps", "2"]
TOY += ["--num-test-tasks", "3", "--tasks-per-update", "2"]
# Convolutions are slow without the optimisations of the compiler, which the tests turn off: few filters, one block.
FEW_SHOT = ["--num-filters", "2", "--queries", "1", "--train-shots", "2"]
SMALL = {
    "aug-omniglot": ["--num-filters", "2", "--query-batch-size", "4", "--batch-size", "4"],
    "omniglot": FEW_SHOT,
    "miniimagenet": [*FEW_SHOT, "--adapt-steps", "1", "--num-test-tasks", "2"],
}
FOLDERS = {"aug-omniglot": omniglot_folder, "omniglot": omniglot_folder, "miniimagenet": miniimagenet_folder}
# On its larger images miniImageNet repeats what Omniglot does; one algorithm will do.
ALGORITHMS = {name: find_experiment(name).algorithms for name in EXPERIMENTS} | {"miniimagenet": ("sigma-reptile",)}
PAIRS = [
    pytest.param(name, algorithm, marks=[pytest.mark.slow] if name in SMALL else [])
    for name in EXPERIMENTS
    # Runs that start from each other, and runs of several conditions, have their own tests.
    if name not in ("speech", "aug-omniglot-small")
    for algorithm in ALGORITHMS[name]
]

pytestmark = pytest.mark.usefixtures("relaxed")


def run(out: Path, *more: str, experiment: str = "sinusoid", algorithm: str = "sigma-reptile") -> int:
    small = SMALL.get(experiment, [])
    return main(["run", experiment, "--algorithm", algorithm, "--out", str(out), *TOY, *small, *more])


@pytest.mark.parametrize(("experiment", "algorithm"), PAIRS)
def test_every_experiment_and_algorithm_runs(tmp_path, capsys, monkeypatch, experiment, algorithm):
    if experiment in FOLDERS:
        monkeypatch.setenv("SHRINX_DATA", str(FOLDERS[experiment](tmp_path)))
        monkeypatch.setattr(find_experiment(experiment).module, "ConvNet", partial(ConvNet, num_blocks=1))
    monkeypatch.setattr(training, "train_in_chunks", compiled_once.train_in_chunks)
    assert run(tmp_path / "run", "--seeds", "2", experiment=experiment, algorithm=algorithm) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["experiment"], result["algorithm"], result["preset"]) == (experiment, algorithm, "quick")
    assert result["seeds"] == 2
    assert result["seconds"] > 0
    names = [module["name"] for module in result["modules"]]
    assert all(set(module) >= {"name", "size", "variance", "selected"} for module in result["modules"])
    assert set(result["test"]) >= {"all", "only", "selected"}
    assert list(result["test"]["only"]) == names
    for part in (result["test"]["all"], result["test"]["selected"], *result["test"]["only"].values()):
        assert part["mean"] is not None
        assert part["ci95"] is not None
    assert (tmp_path / "run" / "report.html").exists()
    assert "report.html" in capsys.readouterr().out


def test_a_finished_run_is_left_alone(tmp_path, capsys):
    assert run(tmp_path / "run") == 0
    before = contents(tmp_path)
    assert run(tmp_path / "run") == 0
    assert "finished; nothing was touched" in capsys.readouterr().out
    assert contents(tmp_path) == before


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def request(**changes):
    config = find_experiment("sinusoid").config("sigma-reptile", "quick")
    fields = {"experiment": "sinusoid", "algorithm": "sigma-reptile", "preset": "quick", "seeds": 1, "config": config}
    return Request(**{**fields, **changes})


def test_a_half_finished_run_explains_both_choices(tmp_path):
    RunFolder.open(tmp_path / "run", request(), resume=False)
    with pytest.raises(UserError, match="half finished: add --resume to go on with it, or name another folder"):
        RunFolder.open(tmp_path / "run", request(), resume=False)
    RunFolder.open(tmp_path / "run", request(), resume=True)


def test_foreign_folders_are_refused(tmp_path):
    path = tmp_path / "run"
    RunFolder.open(path, request(), resume=False)
    other = dataclasses.replace(request().config, mean_rate=0.5)
    for changed, message in (
        ({"experiment": "swirl"}, "another experiment"),
        ({"seeds": 3}, "other settings .seeds 1 there, 3 here."),
        ({"config": other}, rf"other settings .mean_rate {request().config.mean_rate} there, 0.5 here."),
    ):
        with pytest.raises(UserError, match=message):
            RunFolder.open(path, request(**changed), resume=True)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "version": "99.0"}))
    with pytest.raises(UserError, match="another shrinx version"):
        RunFolder.open(path, request(), resume=True)
    (path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        RunFolder.open(path, request(), resume=True)
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(UserError, match="not empty and holds no run"):
        RunFolder.open(tmp_path / "stuff", request(), resume=False)
    with pytest.raises(UserError, match="is a file"):
        RunFolder.open(tmp_path / "stuff" / "thesis.tex", request(), resume=False)


def test_a_run_from_before_an_option_was_there_has_its_default(tmp_path):
    path = tmp_path / "run"
    RunFolder.open(path, request(), resume=False)
    stored = json.loads((path / "config.json").read_text())
    assert stored["config"].pop("average") == 0
    (path / "config.json").write_text(json.dumps(stored))
    RunFolder.open(path, request(), resume=True)
    averaged = dataclasses.replace(request().config, average=20)
    with pytest.raises(UserError, match="average 0 there, 20 here"):
        RunFolder.open(path, request(config=averaged), resume=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "sinusid"], "Unknown experiment 'sinusid'; known: "),
        (["run", "--tracker", "foo", "sinusoid", "--out", "never"], "Unknown tracker 'foo'"),
        (["run", "sinusoid", "--algorithm", "foo"], "no algorithm 'foo'; known: sigma-maml"),
        (["run", "sinusoid", "--preset", "huge"], "no preset 'huge'; known: quick, paper"),
        (["run", "sinusoid", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["run", "sinusoid", "--out", "never", "--tracker", "foo"], "Unknown tracker 'foo'; known: tensorboard"),
        (["tune", "sinusoid", "--trials", "0", "--storage", "sqlite:///:memory:"], "holds no trials yet"),
        (["report", "nowhere"], "nowhere"),
        (["report", "nowhere", "--out", "page.html"], "--out is for several runs"),
    ],
)
def test_one_line_errors(monkeypatch, tmp_path, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not Path("never").exists()


def test_listing_and_help(capsys):
    assert main(["list"]) == 0
    assert "sinusoid" in capsys.readouterr().out
    assert main(["run", "--help"]) == 0
    assert "example: shrinx run" in capsys.readouterr().out
    for command in (["run", "sinusoid", "--help"], ["report", "--help"], ["list", "--help"], ["--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(command)


def test_a_reader_who_leaves_is_no_error():
    """As in `shrinx run sinusoid --help | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "shrinx", "run", "sinusoid", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("program", ["/usr/local/bin/shrinx", str(Path(cli.__file__).with_name("__main__.py"))])
def test_a_command_is_written_down_as_it_can_be_typed(monkeypatch, program):
    monkeypatch.setattr(sys, "argv", [program, "run", "sinusoid"])
    assert environment()["command"] == "shrinx run sinusoid"


def final_state(path: Path) -> list[np.ndarray]:
    newest = sorted((path / "checkpoints").glob("*.npz"))[-1]
    with np.load(newest) as stored:
        return [stored[name] for name in stored.files]


COMMAND = [sys.executable, "-m", "shrinx", "run", "sinusoid", "--algorithm", "sigma-reptile", *TOY, "--hidden", "4"]
COMMAND += ["--num-updates", "16000", "--seeds", "2"]


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_ten_interruptions_change_no_bit(tmp_path):
    """Ctrl-C, kill and kill -9 at random moments; the state in the end is that of the run nobody touched."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    # Twelve processes compile the same.
    env |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    subprocess.run([*COMMAND, "--out", str(whole)], env=env, check=True, capture_output=True)
    rng = random.Random(0)
    ends = set()
    for interruption in range(10):
        process = subprocess.Popen(
            [*COMMAND, "--out", str(pieces), "--resume"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        already = len(read_metrics(pieces))
        deadline = time.monotonic() + 60
        while len(read_metrics(pieces)) <= already and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[interruption % 3])
        process.communicate(timeout=60)
        ends.add(process.returncode)
    assert 0 not in ends  # Otherwise the last of them had nothing left to interrupt.
    subprocess.run([*COMMAND, "--out", str(pieces), "--resume"], env=env, check=True, capture_output=True)
    for a, b in zip(final_state(whole), final_state(pieces), strict=True):
        np.testing.assert_array_equal(a, b)
    results = [json.loads((path / "result.json").read_text()) for path in (whole, pieces)]
    assert results[0]["test"] == results[1]["test"]
    steps = [row["step"] for row in read_metrics(pieces)]
    assert steps == [row["step"] for row in read_metrics(whole)]


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_two_processes_are_not_at_one_run(tmp_path):
    env, folder = {**os.environ, "JAX_PLATFORMS": "cpu"}, tmp_path / "run"
    endless = [*COMMAND, "--num-updates", "1000000", "--out", str(folder)]
    first = subprocess.Popen(endless, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not read_metrics(folder) and first.poll() is None:
        time.sleep(0.05)
    second = subprocess.run([*endless, "--resume"], env=env, capture_output=True, text=True)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (130, 2)
    assert f"Another process is at this run, in {folder}: wait for it or stop it." in second.stderr
    steps = [row["step"] for row in read_metrics(folder)]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    ("curves", "said"),
    [({}, "with all"), ({"curves": {"steps": [0, 5]}}, "with all"), ({"curves": {"steps": [0]}}, "without adaptation")],
)
def test_the_last_words_of_a_run(capsys, curves, said):
    """Of several conditions together there are no curves as a rule."""
    score = {"mean": 0.5, "ci95": 0.1}
    result = {"metric": {"name": "accuracy"}, "test": {"all": score, "selected": score}, "modules": [], **curves}
    cli._print_summary(result, Path("run"))
    assert f"accuracy on held-out tasks: 0.5 ± 0.1 {said}" in capsys.readouterr().out


STATE = {"a": np.arange(6.0).reshape(2, 3), "b": np.int32(7)}


def test_checkpoints_of_types_that_numpy_lacks(tmp_path):
    state = {"a": jnp.arange(4, dtype=jnp.bfloat16) / 3, "b": jnp.ones(2)}
    checkpoint.save(tmp_path, 1, state)
    _, restored = checkpoint.restore(tmp_path, state)
    assert restored["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(restored["a"], state["a"])
    with pytest.raises(UserError, match="another model"):
        checkpoint.restore(tmp_path, {**state, "a": jnp.zeros(4)})


def test_checkpoints_come_back_and_old_ones_go(tmp_path):
    for step in range(1, 6):
        checkpoint.save(tmp_path, step, {**STATE, "b": np.int32(step)})
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"{step:010d}.npz" for step in (3, 4, 5)]
    step, state = checkpoint.restore(tmp_path, STATE)
    assert step == 5
    np.testing.assert_array_equal(state["a"], STATE["a"])
    assert state["b"] == 5
    assert checkpoint.restore(tmp_path / "none", STATE) is None


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    checkpoint.save(tmp_path, 1, STATE)
    newest = checkpoint.save(tmp_path, 2, STATE)
    data = newest.read_bytes()
    position = data.index(np.float64(5.0).tobytes())
    flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
    newest.write_bytes(
        {"truncated": data[: len(data) // 2], "empty": b"", "flipped": flipped, "text": b"hello"}[damage]
    )
    with pytest.warns(UserWarning, match=r"0000000002.npz is damaged"):
        step, _ = checkpoint.restore(tmp_path, STATE)
    assert step == 1
    (tmp_path / "0000000001.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(UserError, match="All 2 checkpoints"):
        checkpoint.restore(tmp_path, STATE)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, STATE)
    with pytest.raises(UserError, match="another model"):
        checkpoint.restore(tmp_path, {"a": np.zeros((3, 3)), "b": np.int32(0)})


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, STATE)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["0000000001.npz"]


def test_statistics():
    scores = np.array([[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]])
    summary = summarise(scores)
    assert summary["mean"] == 3.0
    assert summary["ci95"] == pytest.approx(4.303 / np.sqrt(3))
    assert summary["over"] == "seeds"
    assert summarise(scores[:1])["over"] == "tasks"
    assert half_width([1.0]) is None
    assert summarise([[float("nan")], [1.0]])["mean"] is None


def test_sparkline():
    assert sparkline([0.0, 1.0, 2.0]) == "▁▄█" or sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert sparkline([1.0]) == "▁"
    assert sparkline([float("inf"), 0.0, float("nan")])[2] == "?"
    assert len(sparkline([float(value) for value in range(123)])) <= 41


@pytest.mark.parametrize("algorithm", ["sigma-maml", "sigma-reptile"])
def test_a_study_is_shared_through_its_storage(tmp_path, capsys, algorithm):
    import optuna

    storage = f"sqlite:///{tmp_path / 'study.db'}"
    command = ["tune", "sinusoid", "--algorithm", algorithm, "--storage", storage, *TOY, "--hidden", "4"]
    for trials in ("3", "1"):
        assert main([*command, "--trials", trials, "--batch", "2", "--decay", "0.0"]) == 0
    said = capsys.readouterr()
    assert "Best of" in said.out
    assert said.err.startswith("4/8 0 of 3 trials, none finished yet, least loss ")
    assert "8/8 " in said.err
    study = optuna.load_study(study_name=f"sinusoid-{algorithm}", storage=storage)
    assert len(study.trials) == 4
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 4
    assert {"mean_rate", "variance", "inner_rate"} <= set(study.best_params)
    for trial in study.trials:
        assert set(trial.user_attrs["variances"]) == {"w0", "b0", "w1", "b1", "w2", "b2"}
        assert all(variance > 0 for variance in trial.user_attrs["variances"].values())


def test_trials_of_other_settings_are_not_compared(tmp_path, capsys):
    """Those searched may differ, and the seed; a study can be looked at whatever the settings."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    command = ["tune", "sinusoid", "--storage", storage, *TOY, "--trials", "1"]
    assert main([*command, "--hidden", "4"]) == 0
    assert main([*command, "--hidden", "4", "--seed", "1", "--mean-rate", "1e-4"]) == 0
    for other in (["--hidden", "3"], ["--hidden", "4", "--settle", "0.5"]):
        assert main([*command, *other]) == 2
        assert "was begun with other settings (" in capsys.readouterr().err
    assert main(["tune", "sinusoid", "--storage", storage, "--trials", "0"]) == 0
    assert "Best of 2" in capsys.readouterr().out


def test_what_a_storage_refuses_is_not_running_for_ever(tmp_path, monkeypatch):
    """One trial is told before the storage fails, the others are given up, and the storage's own error is seen."""
    import optuna

    storage, told = f"sqlite:///{tmp_path / 'study.db'}", []

    def fails(trial, key, value):
        told.append(trial)
        if len(told) == 2:
            raise optuna.exceptions.StorageInternalError("database is locked")
        return keep(trial, key, value)

    keep = optuna.Trial.set_user_attr
    monkeypatch.setattr(optuna.Trial, "set_user_attr", fails)
    with pytest.raises(optuna.exceptions.StorageInternalError, match="locked"):
        main(["tune", "sinusoid", "--storage", storage, *TOY, "--hidden", "4", "--trials", "3", "--batch", "3"])
    study = optuna.load_study(study_name=DEFAULT_STUDY, storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "FAIL"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("RESOURCE_EXHAUSTED: out of memory")])
def test_a_search_that_ends_early_keeps_what_it_has(tmp_path, capsys, monkeypatch, error):
    import optuna

    storage, batches = f"sqlite:///{tmp_path / 'study.db'}", []

    def second_fails(search, columns, **options):
        batches.append(columns)
        if len(batches) == 2:
            raise error
        return score(search, columns, **options)

    score = Search.score
    monkeypatch.setattr(Search, "score", second_fails)
    command = ["tune", "sinusoid", "--storage", storage, *TOY, "--hidden", "4", "--trials", "2", "--batch", "1"]
    if isinstance(error, KeyboardInterrupt):
        assert main(command) == 130
        assert f"interrupted; finished trials are in {storage}" in capsys.readouterr().err
    else:
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
            main(command)
    study = optuna.load_study(study_name=DEFAULT_STUDY, storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]
