"""Hyperparameter search on validation tasks: random, as in the paper, in batches of trials under vmap.

The study lives in an Optuna storage (a file or a database), so that it can be interrupted, resumed and shared: any
number of workers or machines that name the same storage and study add trials to it.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from rich.console import Console

from .interruption import heed
from .progress import meter
from .search import Search
from .statistics import finite
from .studies import Range, existing_study, open_study


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
    console: Console | None = None,
) -> Any:
    """Add `num_trials` finished trials to the study `name` and return it; without any it must be there.

    Every trial keeps the variances it learned, by module, in its attribute `variances`.

    **Arguments:** `module`, the experiment's module; `base`, the configuration the trials start from; `space`, the
    fields that vary; `storage`, an Optuna storage address; `batch`, trials trained together under vmap. Interrupted
    trials count as failed.
    """
    if not num_trials:
        return existing_study(name, storage)
    setup = module.setup(base)
    study = open_study(name, storage, base, space, seed=seed, lower_is_better=setup.lower_is_better)
    names = jax.eval_shape(setup.init, jax.random.key(seed)).modules.names
    search = Search(module.setup, base, seed=seed)
    batches = [min(batch, num_trials - first) for first in range(0, num_trials, batch)]
    with meter(len(batches) * base.num_updates, 0, console) as progress:
        for index, size in enumerate(batches):
            made, note = index * base.num_updates, f"{sum(batches[:index])} of {num_trials} trials, {_best(study)}"

            def seen(step: int, losses: np.ndarray, made: int = made, note: str = note) -> None:
                known = losses[np.isfinite(losses)]
                progress.advance(made + step, f"{note}, least loss {known.min():.3g}" if known.size else note)
                heed()

            trials: list[Any] = []
            try:
                for _ in range(size):  # One by one, so that those asked for before an interruption are known.
                    trials.append(study.ask())
                columns = {
                    field: np.asarray(
                        [trial.suggest_float(field, bounds.low, bounds.high, log=True) for trial in trials]
                    )
                    for field, bounds in space.items()
                }
                found = search.score(columns, progress=seen)
                variances = np.exp(found["log_variance"].astype(np.float64))
                for trial, learned, score in zip(trials, variances, found["all"].tolist(), strict=True):
                    trial.set_user_attr("variances", dict(zip(names, map(finite, learned.tolist()), strict=True)))
                    _tell(study, trial, score)
            except BaseException:  # Interrupted, out of memory: they would count as running for ever.
                for trial in trials:
                    with suppress(Exception):  # The storage may be what has failed; the first error is to be seen.
                        _tell(study, trial, math.nan)
                raise
    return study


def _tell(study: Any, trial: Any, score: float) -> None:
    """Nothing if it has been told already."""
    from optuna.trial import TrialState

    failed = not math.isfinite(score)
    study.tell(trial, None if failed else score, TrialState.FAIL if failed else None, skip_if_finished=True)


def _best(study: Any) -> str:
    some = any(trial.value is not None for trial in study.get_trials(deepcopy=False))
    return f"best {study.best_value:.4g}" if some else "none finished yet"
