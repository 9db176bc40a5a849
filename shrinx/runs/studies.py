"""Studies: the trials of a search, in an Optuna storage that workers share and that outlives an interruption."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError
from .folder import differences

_PATIENCE = 60.0
"""Seconds to wait for a file of trials that another worker is writing to."""
_FILE = "sqlite:///"


@dataclass(frozen=True)
class Range:
    """An interval searched on a logarithmic scale."""

    low: float
    high: float


def open_study(
    name: str, storage: str, base: Any, space: Mapping[str, Range], *, seed: int, lower_is_better: bool
) -> Any:
    """The study `name`, to add trials to; made if it is not there. Trials that it has must have these settings."""
    import optuna

    direction = "minimize" if lower_is_better else "maximize"
    study = optuna.create_study(study_name=name, storage=_open(storage), direction=direction, load_if_exists=True)
    # Of the seed and of what the study has already: the same command again adds other trials, not the same.
    drawn = np.random.SeedSequence([seed, len(study.get_trials(deepcopy=False))]).generate_state(1)
    study.sampler = optuna.samplers.RandomSampler(seed=int(drawn[0]))
    ours = {field: [bounds.low, bounds.high] for field, bounds in space.items()}
    # Scores of trials that differ in more than what is searched cannot be compared.
    free = dict.fromkeys((*space, "seed", "data_dir"))
    settings = json.loads(json.dumps({**asdict(base), **free}))
    known = study.user_attrs
    if known.get("space", ours) != ours:
        raise UserError(f"The study {name!r} in {storage} searches another space; name another study.")
    if differing := differences(known.get("base", settings), settings, base):
        raise UserError(f"The study {name!r} was begun with other settings ({differing}); name another.")
    study.set_user_attr("space", ours)
    study.set_user_attr("base", settings)
    return study


def existing_study(name: str, storage: str) -> Any:
    """The study `name`, to look at: nothing is made."""
    import optuna

    # To open a file that is not there would make it.
    if not _is_missing_file(storage):
        with suppress(KeyError):
            study = optuna.load_study(study_name=name, storage=_open(storage))
            if study.get_trials(deepcopy=False):
                return study
    raise UserError(
        f"The study {name!r} in {storage} holds no trials yet: add some with --trials, or name another with --study "
        "and --storage."
    )


def _is_missing_file(storage: str) -> bool:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        address = make_url(storage)
    except ArgumentError:  # Said by who opens it.
        return False
    path = address.database or ""
    return address.get_backend_name() == "sqlite" and not path.startswith("file:") and not Path(path).is_file()


def _open(storage: str) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Workers that share a file wait for each other; 5 seconds were the default.
    patient = {"connect_args": {"timeout": _PATIENCE}} if storage.startswith("sqlite:") else {}
    try:
        return optuna.storages.RDBStorage(storage, engine_kwargs=patient)
    # No such folder, no address, no driver for a database: each has an exception of its own.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"Cannot open the storage {storage!r} ({reason}); a file is named as {_FILE}tune.db, in a folder that is "
            "there."
        ) from error
