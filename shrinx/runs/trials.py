"""Trials of given settings: each is trained and scored on validation tasks, and all are written down in one file.

Rates and the like are arrays, so that trials that differ in nothing else are trained together under `vmap`. Whatever
changes the program (a batch size, a number of steps) makes a program of its own.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from .errors import UserError
from .files import write_json
from .folder import differences, environment, read_json
from .interruption import heed, resumable
from .progress import meter
from .search import score_trials
from .settings import Settings, in_words
from .statistics import finite

_ABOUT = (
    "Trials, one seed: `values` are what differs from `base`; `scores` those of validation tasks with all modules "
    "adapted and with each of `alone` alone; `query_loss` that of meta-training after so many updates; `variances` "
    "what was learned; `seconds` those of all trials that were trained together; `call` which of `calls` it was."
)


class Plan(NamedTuple):
    """What trials of one file have in common."""

    experiment: str
    algorithm: str
    preset: str
    base: Any
    """The configuration that they differ from."""
    alone: tuple[str, ...] = ()
    """Modules that are also scored when they adapt alone."""

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps({**self._asdict(), "base": asdict(self.base)}))


class _Group(NamedTuple):
    """Trials of one program."""

    base: Any
    trials: list[Settings]
    columns: dict[str, np.ndarray]
    names: tuple[str, ...]


def try_settings(
    module: Any,
    plan: Plan,
    trials: Sequence[Settings],
    file: Path,
    *,
    batch: int = 16,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Train and score the trials, and add them to `file` as they are finished; those it has already are left alone.

    **Arguments:** `module`, the experiment's module; `plan`; `trials`, see `read_settings`; `file`, JSON; `batch`, how
    many are trained together at most.

    **Returns:** the rows of these trials, see `about` in the file.
    """
    kept = _read(plan, file)
    new = [trial for index, trial in enumerate(trials) if trial not in trials[:index] and not _rows_of(trial, kept)]
    # Everything is looked at before anything is trained, so that no slip of the pen is found hours later.
    groups = [_prepare(module, plan, group) for group in _programs(module, plan, new, batch)]
    if console is not None and len(new) < len(trials):
        _say(console, f"{len(trials) - len(new)} of {len(trials)} trials are in {file} already, or named twice.")
    with resumable(file):
        if groups:
            kept["calls"].append(environment())
            write_json(file, kept)  # Before the first trial: it should not be trained for a file that cannot be.
        for group in groups:
            call = len(kept["calls"]) - 1
            kept["trials"] += [{**row, "call": call} for row in _train(module, plan, group, console)]
            write_json(file, kept)
    return [row for trial in trials for row in _rows_of(trial, kept)]


def _read(plan: Plan, file: Path) -> dict[str, Any]:
    """What is in the file, or would be if there was one."""
    ours = plan.as_json()
    if not file.exists():
        return {"about": _ABOUT, **ours, "calls": [], "trials": []}
    found = read_json(file)
    if not (isinstance(found.get("trials"), list) and isinstance(found.get("calls"), list)):
        raise UserError(f"{file} holds no trials; name another file.")
    theirs, settings = ({**part["base"], **{k: part.get(k) for k in ours if k != "base"}} for part in (found, ours))
    differing = differences(theirs, settings, plan.base)
    if differing:
        raise UserError(f"{file} holds trials with other settings ({differing}); name another file.")
    return found


def _rows_of(trial: Settings, kept: Mapping[str, Any]) -> list[Any]:
    """The row of the trial, if there is one."""
    return [row for row in kept["trials"] if row["values"] == trial][:1]


def _programs(module: Any, plan: Plan, trials: Sequence[Settings], batch: int) -> list[list[Settings]]:
    """Trials that can be trained together, `batch` at most."""
    groups: dict[str, list[Settings]] = {}
    for trial in trials:
        apart = {name: value for name, value in trial.items() if name not in _arrays(module, plan, trial)}
        groups.setdefault(json.dumps([apart, sorted(trial)], sort_keys=True), []).append(trial)
    return [group[first : first + batch] for group in groups.values() for first in range(0, len(group), batch)]


def _arrays(module: Any, plan: Plan, trial: Settings) -> list[str]:
    """The fields that are arrays in the program; no number (`None`) is a program of its own."""
    known = {*module.search_space(plan.base), "weight_decay"}
    return [name for name, value in trial.items() if name in known and isinstance(value, float)]


def _prepare(module: Any, plan: Plan, trials: list[Settings]) -> _Group:
    first = trials[0]
    arrays = _arrays(module, plan, first)
    base = replace(plan.base, **{name: value for name, value in first.items() if name not in arrays})
    # Without any there is one trial, and something to map over is needed all the same.
    some = next(iter(module.search_space(base)))
    columns = {name: np.asarray([trial[name] for trial in trials]) for name in arrays}
    columns = columns or {some: np.asarray([getattr(base, some)])}
    try:
        setup = module.setup(base)
        setup.check(jax.tree.map(lambda leaf: leaf[0], setup.splits([base.seed])))
    except ValueError as error:
        raise UserError(f"{in_words(first)}: {error}") from error
    names = jax.eval_shape(setup.init, jax.random.key(base.seed)).modules.names
    unknown = [name for name in plan.alone if name not in names]
    if unknown:
        raise UserError(f"Unknown modules {unknown} to adapt alone; known: {list(names)}.")
    return _Group(base, trials, columns, names)


def _train(module: Any, plan: Plan, group: _Group, console: Console | None) -> list[dict[str, Any]]:
    started, losses = time.monotonic(), []
    if console is not None:
        _say(console, f"{len(group.trials)} at once: {', '.join(map(in_words, group.trials))}")
    subsets = {"all": None, **{name: (name,) for name in plan.alone}}
    with meter(group.base.num_updates, 0, console) as progress:

        def seen(step: int, loss: np.ndarray) -> None:
            losses.append((step, loss))
            progress.advance(step, f"loss {', '.join(f'{value:.3g}' for value in loss)}")
            heed()
            if step == group.base.num_updates and console is not None:
                _say(console, "Scoring on validation tasks …")

        seed = group.base.seed
        found = score_trials(module.setup, group.base, group.columns, seed=seed, subsets=subsets, progress=seen)
    seconds = round(time.monotonic() - started, 1)
    variances = np.exp(found["log_variance"].astype(np.float64))
    return [
        {
            "values": trial,
            "scores": {label: finite(float(found[label][index])) for label in subsets},
            "query_loss": [[step, finite(float(loss[index]))] for step, loss in losses],
            "variances": dict(zip(group.names, map(finite, variances[index].tolist()), strict=True)),
            "seconds": seconds,
        }
        for index, trial in enumerate(group.trials)
    ]


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
