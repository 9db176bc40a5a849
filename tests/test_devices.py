"""Many devices and many processes compute what one does, and one goes on when another is lost."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shrinx import Prior
from shrinx.experiments import find_experiment
from shrinx.runs import meta
from shrinx.runs.distributed import join
from shrinx.runs.errors import UserError
from shrinx.runs.execute import execute
from shrinx.runs.folder import Request, read_metrics

ROOT = Path(__file__).parents[1]
LEARNERS = ("maml", "sigma_reptile")


def start(devices: int, *arguments: str, **options: Any) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen([sys.executable, *arguments], env=environment, **options)


def meta_gradients(out: Path, devices: int) -> Any:
    process = start(devices, str(ROOT / "tests" / "device_gradients.py"), str(out))
    assert process.wait(timeout=300) == 0
    return np.load(out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one device computes."""
    return meta_gradients(tmp_path_factory.mktemp("alone") / "out.npz", 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return meta_gradients(tmp_path_factory.mktemp("many") / "out.npz", 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_the_meta_gradient_is_that_of_one_device(alone, many, name):
    assert (alone["devices"], many["devices"]) == (1, 8)
    difference = np.linalg.norm(many[name] - alone[name])
    assert difference < 1e-6 * np.linalg.norm(alone[name])
    assert many[f"{name} loss"] == pytest.approx(alone[f"{name} loss"], rel=1e-5)


@pytest.mark.slow
def test_tasks_that_do_not_share_out_are_refused(many):
    assert str(many["refusal"]) == "15 tasks cannot be spread evenly over 8 devices."
    assert "These 15 tasks are a part of a batch that was spread over 8 devices" in str(many["refusal of some"])


SMALL = {
    "num_updates": 3000,
    "tasks_per_update": 8,
    "inner_steps": 5,
}
# Two seconds without a sign of life are enough on one machine.
PROCESS = (
    "import sys; from shrinx.runs import watch; watch.PATIENCE = 2.0; from shrinx.cli import main; sys.exit(main())"
)


def start_run(folder: Path, address: str, index: int) -> subprocess.Popen:
    """One of two processes with two devices each."""
    options = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    place = ["--coordinator", address, "--processes", "2", "--process", str(index), "--out", str(folder)]
    command = ["-c", PROCESS, "run", "normal", "--algorithm", "sigma-reptile", *options, *place]
    return start(2, *command, cwd=folder.parent, stderr=subprocess.PIPE, text=True)


def learned(priors: Prior) -> dict[str, Any]:
    return {"mean": priors.mean["theta"].tolist(), "log_variance": priors.log_variance.tolist()}


@pytest.mark.slow
def test_two_processes_learn_what_one_does_and_one_goes_on_when_the_other_is_lost(tmp_path, relaxed, monkeypatch):
    # Held-out tasks take longer than training, and no other process has a part in them.
    monkeypatch.setattr(meta, "_evaluate", lambda setup, lanes, priors, folder, console: (learned(priors), 0.0))
    config = replace(find_experiment("normal").config("sigma-reptile", "quick"), **SMALL)
    request = Request("normal", "sigma-reptile", "quick", 1, config)
    whole = execute(request, tmp_path / "whole", report=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = [start_run(tmp_path / "run", address, index) for index in range(2)]
    try:
        while not read_metrics(tmp_path / "run"):
            assert [process.poll() for process in started] == [None, None]
            time.sleep(0.05)
        started[1].kill()
        _, said = started[0].communicate(timeout=60)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert started[0].returncode == 1
    assert "another process of this run has ended; go on with the same command and --resume" in said
    (first, *_), (expected, *_) = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "whole")
    assert first["step"] == expected["step"] == 500
    np.testing.assert_allclose(first["query_loss"], expected["query_loss"], rtol=1e-5)
    np.testing.assert_allclose(first["log_variance"], expected["log_variance"], rtol=1e-4)
    result = execute(request, tmp_path / "run", resume=True, report=False)
    for name in ("mean", "log_variance"):
        np.testing.assert_allclose(result[name], whole[name], rtol=1e-4)


def test_a_process_without_others_needs_an_address(monkeypatch):
    with pytest.raises(UserError, match="need --coordinator"):
        join(None, 2, 0)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES must be a number, got 'two'"):
        join("127.0.0.1:1", None, 0)
