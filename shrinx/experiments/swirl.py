"""Synthetic experiment 2 (appendix C): ten parameters in two groups, each pair rotated the further out it lies.

The paper's claim: adaptation needs hundreds of steps. Meta-SGD, trained on fewer, overfits beyond some hundred while
σ-Reptile keeps improving past a thousand; its variances show how the tasks were drawn, Meta-SGD's rates do not.
"""

import math
from typing import Any

import numpy as np
from rich.console import Console

from ..runs.folder import RunFolder
from ..runs.meta import Setup, meta_learn
from ..runs.trackers import Tracker
from ..tasks.hierarchical import ANGULAR_VELOCITY, swirl
from . import hierarchical
from .hierarchical import ALGORITHMS, PRESETS, Config, search_space
from .hierarchical_figures import ANGLES

__all__ = ["ALGORITHMS", "PRESETS", "Config", "preset_config", "run", "search_space", "setup"]


# Round values, not those of the search: it is a tenth as long, and favours outer rates that are too large for this.
_SIGMA = {"mean_rate": 1e-2, "inner_rate": 0.2, "variance_rate": 1e-2, "variance": 16.0}
_RATES = {
    "sigma-reptile": _SIGMA,
    "sigma-imaml": _SIGMA,
    "sigma-maml": _SIGMA,
    "meta-sgd": {"mean_rate": 1e-2, "inner_rate": 0.1, "variance_rate": 1e-2},
    "maml": {"mean_rate": 1e-2, "inner_rate": 0.2},
}


def preset_config(algorithm: str, preset: str) -> Config:
    """`paper` has the paper's model."""
    num_updates = {"quick": 1_000, "paper": 10_000}[preset]
    return hierarchical.preset_config(
        algorithm, swirl(), rates=_RATES[algorithm], num_updates=num_updates, converged=1000, adapt_steps=300
    )


def setup(config: Config) -> Setup:
    return hierarchical.setup(config, swirl(), lambda *task: _likelihood(config, *task))


def run(config: Config, folder: RunFolder, console: Console | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    return meta_learn(setup(config), folder, seed=config.seed, console=console, trackers=trackers)


def _likelihood(config: Config, theta: np.ndarray, mean: np.ndarray, width: float) -> np.ndarray:
    """A circle around the mean observation, rotated back."""
    radius = width * swirl().noise[0] / math.sqrt(config.num_support)
    x, y = mean[:2, None] + radius * np.stack([np.cos(ANGLES), np.sin(ANGLES)])
    angle = -ANGULAR_VELOCITY * np.hypot(x, y)
    return np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y])
