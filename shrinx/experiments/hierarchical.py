"""What the two synthetic experiments of appendix C share: learning φ and σ of a hierarchical normal model.

The paper gives no number of observations. With two per task, in support and query alike, adaptation without a prior
overfits as it describes; with ten it hardly does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._modules import by_leaf
from .._prior import Prior
from .._select import LargestGap
from ..runs.meta import Setup
from ..runs.studies import Range
from ..tasks.hierarchical import Model
from .algorithms import SIGMA, LearnerConfig, make_learner
from .hierarchical_figures import Likelihood, extras

ALGORITHMS = ("sigma-reptile", "sigma-imaml", "sigma-maml", "meta-sgd", "maml")
PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Config(LearnerConfig):
    num_support: int = 2
    """Observations a task is adapted to."""
    num_query: int = 2
    """Observations the meta-gradient is taken on."""
    num_test_query: int = 200
    """Observations a held-out task is scored on."""


def preset_config(
    algorithm: str, model: Model, *, rates: Mapping[str, Any], num_updates: int, converged: int, adapt_steps: int
) -> Config:
    """`rates` are of our own search (`results/*/search`), as were the paper's; `converged` steps suffice to adapt.

    The variances are those of the tasks only if adaptation converges; a shorter horizon is a regulariser itself, and
    σ-MAML then leaves the variances of slow directions to grow.
    """
    return Config(
        algorithm=algorithm,
        num_updates=num_updates,
        tasks_per_update=20,
        inner_steps=converged if algorithm in SIGMA else 100,
        decay=0.5,
        cg_steps=len(model.spread),
        adapt_steps=adapt_steps,
        num_test_tasks=1000,
        **rates,
    )


def search_space(config: Config) -> dict[str, Range]:
    """What `tune` varies."""
    space = {"mean_rate": Range(1e-3, 1e-1), "inner_rate": Range(2e-2, 1.0)}
    if config.algorithm != "maml":
        space["variance_rate"] = Range(1e-3, 1e-1)
    if config.algorithm in SIGMA:
        space["variance"] = Range(1.0, 1000.0)
    return space


def setup(config: Config, model: Model, likelihood: Likelihood) -> Setup:
    def init(key: jax.Array) -> Prior:
        del key  # Every seed starts at zero; the tasks differ.
        theta = {name: jnp.zeros(()) for name in model.names}
        return Prior.create(theta, modules=by_leaf(theta), variance=config.variance)

    tasks = partial(model.sample_tasks, num_support=config.num_support)
    return Setup(
        learner=make_learner(config),
        average=config.average,
        loss_fn=model.loss,
        init=init,
        train_tasks=partial(tasks, num_tasks=config.tasks_per_update, num_query=config.num_query),
        test_tasks=partial(tasks, num_tasks=config.num_test_tasks, num_query=config.num_test_query),
        num_updates=config.num_updates,
        keep_best=config.keep_best,
        adapt_steps=config.adapt_steps,
        metric_name="negative log-likelihood per observation",
        metric_fn=model.loss_per_observation,
        rule=LargestGap(),
        extras=partial(extras, config, model, likelihood),
    )
