"""Sinusoid regression (appendix E.3): ten points of y = a sin(x - b), a 1-40-40-1 network, six modules.

The paper's claim: the variances of the first layer (w0, b0) end far above the others, and adapting that layer alone is
as good as adapting everything.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from .._adapt import adapt
from .._modules import by_leaf
from .._prior import Prior
from .._select import LargestGap, TopK
from ..models import mlp
from ..runs.folder import RunFolder
from ..runs.meta import Setup, meta_learn
from ..runs.studies import Range
from ..runs.trackers import Tracker
from ..tasks import sinusoid
from .algorithms import PLAIN, SIGMA, LearnerConfig, make_learner, make_solver

ALGORITHMS = (*SIGMA, *PLAIN)
PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Config(LearnerConfig):
    hidden: int = 40
    """Width of the two hidden layers."""
    first_scale: float = 0.3
    """Scale of the first layer's He-normal weights."""
    num_support: int = 10
    """Points a task is adapted to."""
    num_query: int = 10
    """Points the meta-gradient is taken on."""
    num_test_query: int = 50
    """Points a held-out task is scored on."""


def preset_config(algorithm: str, preset: str) -> Config:
    """`paper` has the paper's task, network, batch and number of updates; the rates are of our own search."""
    unrolled = {"mean_rate": 5e-3, "inner_rate": 0.01, "inner_steps": 30, "first_scale": 0.3, "max_task_norm": 0.5}
    implicit = {"inner_rate": 4e-3, "first_scale": 0.35, "cg_steps": 1, "damping": 0.6, "max_task_norm": 1.0}
    reptile = {"inner_rate": 3e-3, "first_scale": 0.22, "cg_steps": 5, "damping": 0.02}
    common: dict[str, dict[str, Any]] = {
        "sigma-maml": {**unrolled, "variance_rate": 3e-2, "variance": 6.0},
        "sigma-imaml": {**implicit, "mean_rate": 2e-3, "variance_rate": 4e-3, "variance": 25.0},
        "sigma-reptile": {**reptile, "mean_rate": 1e-2, "variance_rate": 8e-3, "variance": 1.0},
        "maml": unrolled,
        "imaml": {**implicit, "mean_rate": 2e-3, "variance": 100.0},
        "reptile": {**reptile, "mean_rate": 1e-3},
    }
    # In 100,000 updates the mean drifts to where a fixed inner step size diverges, which implicit gradients do not see;
    # the docs have what was tried against it.
    long: dict[str, dict[str, Any]] = {
        "sigma-imaml": {
            "solver": "backtracking",
            "inner_rate": 0.01,
            "first_scale": 0.4,
            "variance_rate": 5e-3,
            "variance": 20.0,
            "decay": 0.7,
            "keep_best": True,
        },
        "sigma-reptile": {
            "first_scale": 0.48,
            "variance_rate": 5.5e-3,
            "variance": 10.0,
            "damping": 0.017,
            "weight_decay": 0.03,
            "fall": 30.0,
            "settle": 0.5,
            "keep_best": True,
        },
    }
    settings = {**common[algorithm], "decay": 0.5, **(long.get(algorithm, {}) if preset == "paper" else {})}
    updates = {"quick": 4_000 if algorithm.endswith("-maml") or algorithm == "maml" else 8_000, "paper": 100_000}
    return Config(algorithm=algorithm, num_updates=updates[preset], **settings)


def search_space(config: Config) -> dict[str, Range]:
    """What `tune` varies."""
    space = {"mean_rate": Range(1e-3, 1.5e-2), "inner_rate": Range(2e-3, 1.5e-2), "first_scale": Range(0.15, 0.6)}
    if config.algorithm in SIGMA:
        space |= {"variance_rate": Range(3e-3, 5e-2), "variance": Range(0.3, 100.0)}
    if config.algorithm in ("sigma-imaml", "sigma-reptile", "imaml"):
        space["damping"] = Range(1e-2, 3.0)
    if config.algorithm not in ("sigma-reptile", "reptile"):
        space["max_task_norm"] = Range(0.1, 30.0)
    return space


def setup(config: Config) -> Setup:
    def init(key: jax.Array) -> Prior:
        sizes = (1, config.hidden, config.hidden, 1)
        params = mlp.init(key, sizes, first_scale=config.first_scale)
        return Prior.create(params, modules=by_leaf(params), variance=config.variance)

    return Setup(
        learner=make_learner(config),
        average=config.average,
        loss_fn=mlp.squared_error,
        init=init,
        train_tasks=partial(
            sinusoid.sample_tasks,
            num_tasks=config.tasks_per_update,
            num_support=config.num_support,
            num_query=config.num_query,
        ),
        test_tasks=partial(
            sinusoid.sample_tasks,
            num_tasks=config.num_test_tasks,
            num_support=config.num_support,
            num_query=config.num_test_query,
        ),
        num_updates=config.num_updates,
        keep_best=config.keep_best,
        adapt_steps=config.adapt_steps,
        metric_name="mean squared error",
        # Without learned variances all modules are alike, and none is chosen over another.
        rule=TopK(2) if config.algorithm in SIGMA else LargestGap(),
        subsets={"layer 0": ("w0", "b0")},
        extras=lambda outcome: {"examples": _examples(config, outcome.first, outcome.selected)},
    )


def run(config: Config, folder: RunFolder, console: Console | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    return meta_learn(setup(config), folder, seed=config.seed, console=console, trackers=trackers)


def _examples(config: Config, prior: Prior, selected: tuple[str, ...]) -> list[dict[str, Any]]:
    """Predictions on three held-out tasks: nothing, everything, the selected modules or the rest, if any, adapted."""
    solver = make_solver(config)
    grid = jnp.linspace(-5, 5, 81)[:, None]
    rest = tuple(name for name in prior.modules.names if name not in selected)
    examples = []
    for amplitude, phase, seed in ((4.0, 0.5, 0), (2.0, 1.5, 1), (3.0, 2.8, 2)):
        x = jax.random.uniform(jax.random.key(seed), (config.num_support, 1), minval=-5.0, maxval=5.0)
        y = sinusoid.sinusoid(x, jnp.asarray(amplitude), jnp.asarray(phase))
        predictions = {"before": mlp.apply(prior.mean, grid)[:, 0].tolist()}
        for label, members in {"all": None, "selected": selected, **({"the others": rest} if rest else {})}.items():
            adapted = adapt(mlp.squared_error, prior, (x, y), solver, num_steps=config.adapt_steps, trainable=members)
            predictions[label] = mlp.apply(adapted.params, grid)[:, 0].tolist()
        truth = sinusoid.sinusoid(grid, jnp.asarray(amplitude), jnp.asarray(phase))
        examples.append(
            {
                "x": grid[:, 0].tolist(),
                "truth": truth[:, 0].tolist(),
                "support_x": x[:, 0].tolist(),
                "support_y": y[:, 0].tolist(),
                "predictions": predictions,
            }
        )
    return examples
