"""Numbers that no experiment can run with, found before anything is computed."""

import math
from dataclasses import fields
from typing import Any

from ..runs.errors import UserError

ANY = {"seed", "true_mean"}
SHARES = {"decay", "settle"}
MAY_BE_ZERO = SHARES | {
    "num_updates",
    "warmup",
    "mean_rate",
    "mean_rates",
    "mean_epsilon",
    "variance_rate",
    "variance_rates",
    "weight_decay",
    "regulariser",
    "damping",
    "cg_steps",
    "last_steps",
    "power_steps",
    "average",
}


def check_limits(config: Any) -> None:
    """Raise a `UserError` that names the option and what it may be. Fields are positive unless they are listed here."""
    may_be_zero = MAY_BE_ZERO | getattr(config, "may_be_zero", frozenset())
    for field in fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                _check(field.name, number, may_be_zero)


def _check(name: str, number: int | float, may_be_zero: set[str]) -> None:
    option = f"--{name.replace('_', '-')}"
    if not math.isfinite(number):
        raise UserError(f"{option} must be a finite number, got {number}.")
    if name in ANY:
        return
    if number < 0 or (number == 0 and name not in may_be_zero):
        least = "at least 0" if name in may_be_zero else "positive"
        raise UserError(f"{option} must be {least}, got {number}.")
    if name in SHARES and number > 1:
        raise UserError(f"{option} is a share of the updates, from 0 to 1, got {number}.")
