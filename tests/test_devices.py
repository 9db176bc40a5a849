"""Many devices and many processes compute what one does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
LEARNERS = ("maml", "sigma_reptile")


def start(out: Path, devices: int, *processes: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, str(ROOT / "tests" / "device_gradients.py"), str(out), *processes]
    return subprocess.Popen(command, env=environment, cwd=out.parent)


def finish(*started: subprocess.Popen) -> None:
    try:
        assert [process.wait(timeout=300) for process in started] == [0] * len(started)
    finally:
        for process in started:
            process.kill()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one device computes."""
    out = tmp_path_factory.mktemp("alone") / "out.npz"
    finish(start(out, 1))
    return np.load(out)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    out = tmp_path_factory.mktemp("many") / "out.npz"
    finish(start(out, 8))
    return np.load(out)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Two processes of four devices each, over the loopback."""
    out = tmp_path_factory.mktemp("two") / "out.npz"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    finish(*(start(out, 4, address, "2", str(index)) for index in range(2)))
    return np.load(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("setting", ["many", "two_processes"])
def test_the_meta_gradient_is_that_of_one_device(alone, setting, name, request):
    spread = request.getfixturevalue(setting)
    assert (alone["devices"], spread["devices"]) == (1, 8)
    difference = np.linalg.norm(spread[name] - alone[name])
    assert difference < 1e-6 * np.linalg.norm(alone[name])
    assert spread[f"{name} loss"] == pytest.approx(alone[f"{name} loss"], rel=1e-5)


@pytest.mark.slow
def test_tasks_that_do_not_share_out_are_refused(many):
    assert str(many["refusal"]) == "15 tasks cannot be spread evenly over 8 devices."
