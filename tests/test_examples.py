"""Every example runs, at a size that says nothing about its result, and is short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shrinx.tasks import digits

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
NEEDS = {"flax": "flax", "haiku": "haiku", "shrinx.tasks import digits": "sklearn", "torch": "torch"}
SMALLEST = {"sinusoid.py": ("--updates", "1000")}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path, tmp_path):
    text = path.read_text()
    for words, package in NEEDS.items():
        if f"import {words}" in text or f"from {words}" in text:
            pytest.importorskip(package)
    environment = {**os.environ, "PYTHONPATH": str(path.parents[1])}
    command = [sys.executable, str(path), *SMALLEST.get(path.name, ("--updates", "2"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not re.search(r"\bnan\b", done.stdout)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) < 80
    assert f"python examples/{path.name}" in path.read_text()


def test_a_scanner_adds_the_same_dirt_to_all_its_images():
    pytest.importorskip("sklearn")
    train, test = digits.load("train"), digits.load("test")
    assert (len(train[1]), len(test[1])) == (1200, 597)
    tasks = digits.sample_scanners(jax.random.key(0), train, 3, num_support=5, num_query=4)
    assert tasks.support[0].shape == (3, 5, 8, 8)
    assert tasks.query[1].shape == (3, 4)
    corner = tasks.support[0][:, :, 0, 0]  # No digit reaches into the corner.
    assert np.ptp(corner, axis=1).max() < 1e-6
    assert np.ptp(corner[:, 0]) > 0.1


def test_customers_have_symbols_of_their_own():
    images = jnp.broadcast_to((jnp.arange(500) % 10)[:, None, None], (500, 8, 8)).astype(jnp.float32)
    tasks = digits.sample_customers(jax.random.key(0), (images, jnp.arange(500, dtype=jnp.int32) % 10), 6)
    shown = tasks.support[0][..., 0, 0].reshape(6, 4, 10)
    assert (np.ptp(shown, axis=2) == 0).all()
    assert all(len(set(customer)) == 4 for customer in shown[..., 0].tolist())
    assert len({tuple(customer) for customer in shown[..., 0].tolist()}) > 1
    np.testing.assert_array_equal(shown, tasks.query[0][..., 0, 0].reshape(6, 4, 10))
    np.testing.assert_array_equal(tasks.support[1][0].reshape(4, 10)[:, 0], jnp.arange(4))
