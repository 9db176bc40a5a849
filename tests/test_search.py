"""Trials under vmap: as many updates as asked for, however they are cut into pieces."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from shrinx.experiments import sinusoid
from shrinx.runs.search import score_trials


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_trials_have_the_updates_asked_for(chunk):
    # Rates that never fall: an update too many would be seen.
    steps = {"num_updates": 4, "inner_steps": 2, "adapt_steps": 2}
    config = replace(sinusoid.preset_config("sigma-maml", "quick"), **steps, decay=0.0, num_test_tasks=2)
    trials, seen = {"mean_rate": np.asarray([1e-3, 1e-2])}, []

    def score(size):
        return score_trials(sinusoid.setup, config, trials, chunk=size, progress=lambda step, _: seen.append(step))

    with jax.numpy_dtype_promotion("standard"):  # Optax's schedules mix integers and floats.
        whole, pieces = score(500), score(chunk)
    assert seen == [4, *range(chunk, 4, chunk), 4]
    np.testing.assert_allclose(pieces["log_variance"], whole["log_variance"], rtol=1e-5)
    np.testing.assert_allclose(pieces["all"], whole["all"], rtol=1e-4)
