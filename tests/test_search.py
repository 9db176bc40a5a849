"""Trials under vmap: as many updates as asked for, however they are cut into pieces."""

from dataclasses import replace

import numpy as np
import pytest

from shrinx.experiments import sinusoid
from shrinx.runs.search import Search, score_trials

pytestmark = pytest.mark.usefixtures("relaxed")


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_trials_have_the_updates_asked_for(chunk):
    # Rates that never fall: an update too many would be seen.
    steps = {"num_updates": 4, "inner_steps": 2, "adapt_steps": 2}
    config = replace(sinusoid.preset_config("sigma-maml", "quick"), **steps, decay=0.0, num_test_tasks=2)
    trials, seen = {"mean_rate": np.asarray([1e-3, 1e-2])}, []

    def score(size):
        return score_trials(sinusoid.setup, config, trials, chunk=size, progress=lambda step, _: seen.append(step))

    whole, pieces = score(500), score(chunk)
    assert seen == [4, *range(chunk, 4, chunk), 4]
    np.testing.assert_allclose(pieces["log_variance"], whole["log_variance"], rtol=1e-5)
    np.testing.assert_allclose(pieces["all"], whole["all"], rtol=1e-4)


def test_batches_of_as_many_trials_compile_once():
    config = replace(sinusoid.preset_config("sigma-maml", "quick"), num_updates=2, adapt_steps=2, num_test_tasks=2)
    compiled, setups = [], []

    def setup_of(config):
        setups.append(config)
        return sinusoid.setup(config)

    search = Search(setup_of, replace(config, inner_steps=2))
    for rate in (1e-3, 1e-2):
        found = search.score({"mean_rate": np.asarray([rate, 2 * rate])}, subsets={"all": None, "w0": ("w0",)})
        compiled.append(len(setups))
    assert compiled[0] == compiled[1]
    assert set(found) == {"all", "w0", "log_variance"}
