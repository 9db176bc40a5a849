"""The normal model (appendix A): one parameter per task, where every estimator has a closed form.

The paper's claim: maximising the joint density over tasks and prior sends σ² to zero, whatever the data, unless it
starts beside a local maximum that need not exist; the estimators of σ-MAML, σ-iMAML and σ-Reptile approach the truth.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from .._prior import Prior
from .._select import LargestGap
from ..runs.folder import RunFolder
from ..runs.meta import Setup, meta_learn
from ..runs.studies import Range
from ..runs.trackers import Tracker
from ..tasks import normal
from .algorithms import SIGMA, LearnerConfig, make_learner

ALGORITHMS = SIGMA
PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Config(LearnerConfig):
    true_mean: float = 1.0
    """φ of the tasks."""
    true_variance: float = 0.25
    """σ² of the tasks."""
    num_support: int = 10
    """N, observations a task is adapted to; their noise has variance 1."""
    num_query: int = 10
    """K, observations the meta-gradient is taken on."""
    num_repeats: int = 200
    """Data sets that the closed-form estimates are averaged over."""


def preset_config(algorithm: str, preset: str) -> Config:
    return Config(
        algorithm=algorithm,
        num_updates={"quick": 2_000, "paper": 20_000}[preset],
        tasks_per_update=100,
        mean_rate=1e-2,
        variance_rate=1e-2,
        decay=0.8,
        regulariser=0.0,
        inner_rate=0.05,
        inner_steps=100,
        cg_steps=1,
        num_test_tasks=1000,
    )


def search_space(config: Config) -> dict[str, Range]:
    """What `tune` varies."""
    return {"mean_rate": Range(1e-3, 1e-1), "variance_rate": Range(1e-3, 1e-1)}


def setup(config: Config) -> Setup:
    def init(key: jax.Array) -> Prior:
        del key  # Every seed starts at zero; the tasks differ.
        return Prior.create({"theta": jnp.zeros(())}, variance=config.variance)

    tasks = partial(
        normal.sample_tasks,
        mean=config.true_mean,
        variance=config.true_variance,
        num_support=config.num_support,
        num_query=config.num_query,
    )
    return Setup(
        learner=make_learner(config),
        average=config.average,
        loss_fn=lambda params, observations: normal.loss_fn(params["theta"], observations),
        init=init,
        train_tasks=partial(tasks, num_tasks=config.tasks_per_update),
        test_tasks=partial(tasks, num_tasks=config.num_test_tasks),
        num_updates=config.num_updates,
        keep_best=config.keep_best,
        adapt_steps=config.adapt_steps,
        metric_name="negative log-likelihood per observation",
        metric_fn=lambda params, query: normal.loss_fn(params["theta"], query) / query.size,
        rule=LargestGap(),
        extras=lambda outcome: {
            "estimates": _estimates(config, outcome.priors),
            "figures": [_against_tasks(config), _against_truth(config), *_joint(config)],
        },
    )


def run(config: Config, folder: RunFolder, console: Console | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    return meta_learn(setup(config), folder, seed=config.seed, console=console, trackers=trackers)


def _estimates(config: Config, priors: Prior) -> dict[str, Any]:
    """What gradient descent on streaming tasks arrived at, per seed, beside the truth."""
    return {
        "mean": {"truth": config.true_mean, "values": np.asarray(priors.mean["theta"]).tolist()},
        "variance": {"truth": config.true_variance, "values": np.exp(np.asarray(priors.log_variance[:, 0])).tolist()},
    }


def _closed_forms(config: Config, num_tasks: int, true_variance: float, key: jax.Array) -> dict[str, np.ndarray]:
    """Estimates of σ², one per repeat, of the joint density and of the two predictive estimators."""

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        # The estimates depend on a task's observations through their means only.
        theta_key, *mean_keys = jax.random.split(key, 3)
        theta = config.true_mean + math.sqrt(true_variance) * jax.random.normal(theta_key, (num_tasks,))
        x, y = (
            theta + jax.random.normal(mean_key, (num_tasks,)) / math.sqrt(count)
            for mean_key, count in zip(mean_keys, (config.num_support, config.num_query), strict=True)
        )
        predictive = normal.predictive_estimate(x, y, config.num_support).variance
        return jnp.var(x), predictive, normal.reptile_estimate(x, y, config.num_support).variance

    repeats = config.num_repeats if num_tasks <= 10_000 else max(1, config.num_repeats // 10)
    spread, predictive, reptile = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(key, repeats))
    roots = [normal.joint_roots(float(value), config.num_support) for value in spread]
    joint = np.asarray([0.0 if root is None else root.right for root in roots])
    return {"joint density": joint, "σ-MAML, σ-iMAML": np.asarray(predictive), "σ-Reptile": np.asarray(reptile)}


def _lines(points: Sequence[int] | Sequence[float], estimates: list[dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """Median and the middle 90 % of the repeats: with few tasks an estimate has no finite mean."""
    return [
        {
            "label": label,
            "x": list(points),
            "y": [float(np.median(one[label])) for one in estimates],
            "low": [float(np.quantile(one[label], 0.05)) for one in estimates],
            "high": [float(np.quantile(one[label], 0.95)) for one in estimates],
        }
        for label in estimates[0]
    ]


def _against_tasks(config: Config) -> dict[str, Any]:
    counts = [10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000]
    keys = jax.random.split(jax.random.key(config.seed), len(counts))
    estimates = [
        _closed_forms(config, count, config.true_variance, key) for count, key in zip(counts, keys, strict=True)
    ]
    line = {"label": "truth", "x": counts, "y": [config.true_variance] * len(counts), "style": "dashed"}
    return {
        "name": "estimates",
        "title": "Estimates of the variance against the number of tasks",
        "caption": "Median and middle 90 % over data sets. The joint density has its best stationary point elsewhere, "
        "or, where it has none, none but zero; the two predictive estimators approach the truth.",
        "kind": "lines",
        "x_label": "tasks",
        "y_label": "estimate of σ²",
        "x_log": True,
        "series": [*_lines(counts, estimates), line],
    }


def _against_truth(config: Config) -> dict[str, Any]:
    truths = np.geomspace(0.02, 2.0, 13).tolist()
    keys = jax.random.split(jax.random.key(config.seed + 1), len(truths))
    estimates = [_closed_forms(config, 1_000, truth, key) for truth, key in zip(truths, keys, strict=True)]
    edge = 3 / config.num_support
    return {
        "name": "failure",
        "title": "Where the joint density fails",
        "caption": f"Estimates from 1,000 tasks against the true variance. Below 3/N = {edge:g} the joint density "
        "has no stationary point and its maximum is at zero.",
        "kind": "lines",
        "x_label": "true σ²",
        "y_label": "estimate of σ²",
        "x_log": True,
        "series": [*_lines(truths, estimates), {"label": "truth", "x": truths, "y": truths, "style": "dashed"}],
        "marks": [{"x": edge, "y": 0.0, "label": "3/N"}],
    }


def _joint(config: Config) -> list[dict[str, Any]]:
    """The paper's figure: loss and gradient of the joint density, without and with stationary points."""
    figures = []
    for label, spread in (("without", 3 / config.num_support), ("with", 8 / config.num_support)):
        roots = normal.joint_roots(spread, config.num_support)
        for name, function in (("loss", normal.joint_loss), ("gradient", normal.joint_gradient)):
            grid = np.linspace(0.1, 8, 100) / config.num_support
            values = np.asarray(function(spread, config.num_support, grid))
            marks = [
                {"x": root, "y": float(function(spread, config.num_support, root)), "label": kind}
                for root, kind in zip(roots or (), ("local maximum", "local minimum"), strict=False)
            ]
            figures.append(
                {
                    "name": f"joint-{name}-{label}",
                    "title": f"Joint density {label} stationary points: {name}",
                    "caption": f"The {name} of the negative log joint density against σ², at the best φ and θ for it; "
                    f"the support means of the tasks have variance {spread * config.num_support:g}/N.",
                    "kind": "lines",
                    "x_label": "σ²",
                    "y_label": name,
                    "marks": marks,
                    "series": [{"x": grid.tolist(), "y": values.tolist()}],
                }
            )
    return figures
