"""Hyperparameter search on validation tasks: random, as in the paper, in batches of trials under vmap.

The study lives in an Optuna storage (a file or a database), so that it can be interrupted, resumed and shared: any
number of workers or machines that name the same storage and study add trials to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .errors import UserError
from .search import score_trials
from .statistics import finite


@dataclass(frozen=True)
class Range:
    """An interval searched on a logarithmic scale."""

    low: float
    high: float


def tune(
    module: Any,
    base: Any,
    space: Mapping[str, Range],
    *,
    name: str,
    storage: str,
    num_trials: int,
    batch: int,
    seed: int,
    report: Callable[[str], None],
) -> Any:
    """Add `num_trials` finished trials to the study `name` and return it.

    Every trial keeps the variances it learned, by module, in its attribute `variances`.

    **Arguments:** `module`, the experiment's module; `base`, the configuration the trials start from; `space`, the
    fields that vary; `storage`, an Optuna storage address; `batch`, trials trained together under vmap.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    setup = module.setup(base)
    direction = "minimize" if setup.lower_is_better else "maximize"
    names = jax.eval_shape(setup.init, jax.random.key(seed)).modules.names
    study = optuna.create_study(study_name=name, storage=storage, direction=direction, load_if_exists=True)
    # Of the seed and of what the study has already: the same command again adds other trials, not the same.
    drawn = np.random.SeedSequence([seed, len(study.get_trials(deepcopy=False))]).generate_state(1)
    study.sampler = optuna.samplers.RandomSampler(seed=int(drawn[0]))
    known = study.user_attrs.get("space")
    ours = {field: [bounds.low, bounds.high] for field, bounds in space.items()}
    if known is not None and known != ours:
        raise UserError(f"The study {name!r} in {storage} searches another space; name another study.")
    study.set_user_attr("space", ours)
    for first in range(0, num_trials, batch):
        trials = [study.ask() for _ in range(min(batch, num_trials - first))]
        columns = {
            field: np.asarray([trial.suggest_float(field, bounds.low, bounds.high, log=True) for trial in trials])
            for field, bounds in space.items()
        }
        found = score_trials(module.setup, base, columns, seed=seed)
        variances = np.exp(found["log_variance"].astype(np.float64))
        for trial, score, learned in zip(trials, found["all"], variances, strict=True):
            if np.isfinite(score):
                trial.set_user_attr("variances", dict(zip(names, map(finite, learned.tolist()), strict=True)))
                study.tell(trial, float(score))
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
        best = f"best {study.best_value:.4g}" if _has_best(study) else "none finite yet"
        report(f"{first + len(trials)} of {num_trials} trials, {best}")
    return study


def _has_best(study: Any) -> bool:
    return any(trial.value is not None for trial in study.get_trials(deepcopy=False))
