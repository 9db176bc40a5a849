"""Trials of given settings: each is trained and scored on validation tasks, and all are written down in one file.

Rates and the like are arrays, so that trials that differ in nothing else are trained together under `vmap`. Whatever
changes the program (a batch size, a number of steps) makes a program of its own.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from .errors import UserError
from .files import write_json
from .folder import environment, read_json
from .progress import meter
from .search import score_trials
from .statistics import finite

Values = dict[str, Any]
"""The settings of a trial, by field of the configuration."""


class Plan(NamedTuple):
    """What is to be tried. Files are compared by it: trials of another plan do not belong into the same."""

    experiment: str
    algorithm: str
    preset: str
    base: Any
    """The configuration that the trials differ from."""
    alone: tuple[str, ...]
    """Modules that are also scored when they adapt alone."""

    def as_json(self) -> dict[str, Any]:
        base = {field.name: getattr(self.base, field.name) for field in fields(self.base)}
        named = {"experiment": self.experiment, "algorithm": self.algorithm, "preset": self.preset}
        return json.loads(json.dumps({**named, "base": base, "alone": self.alone}))


def read_values(words: Sequence[str], base: Any, check: Callable[[Any], None]) -> list[Values]:
    """From words such as `mean_rate=1e-3,3e-3` to the settings of each trial.

    All fields must have equally many values, or one, which is then every trial's. Values are JSON; anything else is
    text. `check` raises for a configuration that cannot be run.
    """
    columns: dict[str, list[Any]] = {}
    for word in words:
        name, _, listed = word.partition("=")
        name = name.replace("-", "_")
        if not listed:
            raise UserError(f"{word!r} is not FIELD=VALUE,VALUE,…: write for instance mean_rate=1e-3,3e-3.")
        if not hasattr(base, name):
            known = ", ".join(field.name for field in fields(base))
            raise UserError(f"There is no field {name!r} to try values of; known: {known}.")
        if name in columns:
            raise UserError(f"The values of {name} are given twice.")
        columns[name] = [_value(name, text, getattr(base, name)) for text in listed.split(",")]
    if not columns:
        raise UserError("Nothing to try: name fields and values, for instance --values mean_rate=1e-3,3e-3.")
    count = max(map(len, columns.values()))
    uneven = {name: len(column) for name, column in columns.items() if len(column) not in (1, count)}
    if uneven:
        raise UserError(f"There are {count} trials, but {_listed(uneven)}: give every field as many, or one for all.")
    trials = [{name: column[index % len(column)] for name, column in columns.items()} for index in range(count)]
    for trial in trials:
        check(replace(base, **trial))
    return trials


def try_values(
    module: Any, plan: Plan, trials: Sequence[Values], file: Path, *, console: Console | None = None
) -> list[dict[str, Any]]:
    """Train and score the trials, and add them to `file` as they are finished; those it has already are left alone.

    **Arguments:** `module`, the experiment's module; `plan`; `trials`, from `read_values`; `file`, JSON.

    **Returns:** the rows of these trials: `values`, `scores` (of `all` modules and of each that is scored alone),
    `query_loss` (pairs of updates and loss), `variances` by module, `seconds`.
    """
    known = _known(plan, file)
    together = set(module.search_space(plan.base)) | {"weight_decay"}
    new = [trial for trial in trials if not _row_of(trial, known)]
    groups: dict[str, list[Values]] = {}
    for trial in new:
        apart = {name: value for name, value in trial.items() if name not in together}
        groups.setdefault(json.dumps(apart, sort_keys=True), []).append(trial)
    if console is not None and len(new) < len(trials):
        console.print(f"{len(trials) - len(new)} of {len(trials)} trials are in {file} already.")
    header = {"about": _ABOUT, **environment(), **plan.as_json()}
    for group in groups.values():
        rows = _train(module, plan, group, together, console)
        known = [*known, *rows]
        write_json(file, {**header, "trials": known})
    return [row for trial in trials for row in _row_of(trial, known)]


_ABOUT = (
    "Trials, one seed: `values` are what differs from `base`, `scores` those of validation tasks with all modules "
    "adapted and with each of `alone` alone, `query_loss` that of meta-training after so many updates, `variances` "
    "what was learned."
)


def _train(
    module: Any, plan: Plan, group: Sequence[Values], together: set[str], console: Console | None
) -> list[dict[str, Any]]:
    started, losses = time.monotonic(), []
    first = group[0]
    base = replace(plan.base, **{name: value for name, value in first.items() if name not in together})
    columns = {name: np.asarray([trial[name] for trial in group]) for name in first if name in together}
    if not columns:  # Then there is one trial, and nothing to map over.
        some = next(iter(module.search_space(base)))
        columns = {some: np.asarray([getattr(base, some)])}
    setup = module.setup(base)
    names = jax.eval_shape(setup.init, jax.random.key(base.seed)).modules.names
    unknown = [name for name in plan.alone if name not in names]
    if unknown:
        raise UserError(f"Unknown modules {unknown} to adapt alone; known: {list(names)}.")
    if console is not None:
        console.print(f"{len(group)} at once: {', '.join(map(_listed, group))}")
    with meter(base.num_updates, 0, console) as progress:

        def seen(step: int, loss: np.ndarray) -> None:
            losses.append((step, loss))
            progress.advance(step, f"loss {', '.join(f'{value:.3g}' for value in loss)}")

        subsets = {"all": None, **{name: (name,) for name in plan.alone}}
        chunk = max(1, min(500, base.num_updates // 20))
        found = score_trials(
            module.setup, base, columns, seed=base.seed, subsets=subsets, chunk=chunk, progress=seen
        )  # fmt: skip
    seconds = round(time.monotonic() - started, 1)
    variances = np.exp(found["log_variance"].astype(np.float64))
    return [
        {
            "values": trial,
            "scores": {label: finite(float(found[label][index])) for label in subsets},
            "query_loss": [[step, finite(float(loss[index]))] for step, loss in losses],
            "variances": dict(zip(names, map(finite, variances[index].tolist()), strict=True)),
            "seconds": seconds,
        }
        for index, trial in enumerate(group)
    ]


def _known(plan: Plan, file: Path) -> list[dict[str, Any]]:
    """The trials that the file has."""
    if not file.exists():
        return []
    found = read_json(file)
    ours = plan.as_json()
    differing = [key for key in ours if found.get(key) != ours[key]]
    if differing:
        raise UserError(f"{file} holds trials of another {', '.join(differing)}; name another file.")
    rows = found.get("trials")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "values" in row for row in rows):
        raise UserError(f"{file} holds no trials; name another file.")
    return rows


def _row_of(trial: Values, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The row of the trial, if there is one."""
    return [row for row in rows if row["values"] == trial][:1]


def _value(name: str, text: str, default: Any) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    # To JSON 1 is a whole number, to Python True is one.
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and value is not None and type(value) is not type(default):
        raise UserError(f"{name} is {default!r} by default; {text!r} is no such value.")
    return value


def _listed(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
