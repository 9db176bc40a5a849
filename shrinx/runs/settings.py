"""Settings in words: from `mean_rate=1e-3,3e-3 solver=gd,adam` to the values of each trial."""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UserError

Settings = dict[str, Any]
"""Values by field of the configuration."""


def read_settings(words: Sequence[str], base: Any, check: Callable[[Any], None]) -> list[Settings]:
    """The settings of each trial: the first value of every field, the second of every field, and so on.

    A field with one value has it in all trials. `check` raises for a configuration that cannot be run.
    """
    hints, columns = _types(base), {}
    for word in words:
        name, _, listed = word.partition("=")
        name = name.replace("-", "_")
        if not listed:
            raise UserError(f"{word!r} is not FIELD=VALUE,VALUE,…: write for instance mean_rate=1e-3,3e-3.")
        if name == "algorithm":
            raise UserError("Algorithms have presets of their own: use --algorithm, and a file for each.")
        if name not in hints:
            raise UserError(f"There is no field {name!r} to try values of; known: {', '.join(hints)}.")
        if name in columns:
            raise UserError(f"The values of {name} are given twice.")
        columns[name] = [_value(name, text, hints[name]) for text in listed.split(",")]
    if not columns:
        raise UserError("Nothing to try: name fields and values, for instance --values mean_rate=1e-3,3e-3.")
    count = max(map(len, columns.values()))
    uneven = {name: len(column) for name, column in columns.items() if len(column) not in (1, count)}
    if uneven:
        raise UserError(f"Some field has {count} values, others {in_words(uneven)}: give all as many, or one for all.")
    trials = [{name: column[index % len(column)] for name, column in columns.items()} for index in range(count)]
    for trial in trials:
        check(replace(base, **trial))
    return trials


def in_words(settings: Mapping[str, Any]) -> str:
    """
    >>> in_words({"mean_rate": 0.1, "solver": "gd"})
    'mean_rate=0.1 solver=gd'
    """
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _types(config: Any) -> dict[str, Any]:
    hints = get_type_hints(type(config))
    return {field.name: hints[field.name] for field in fields(config)}


def _value(name: str, text: str, hint: Any) -> Any:
    origin, members = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if text.lower() in ("none", "null"):
            return None
        (hint,) = (member for member in members if member is not type(None))
        return _value(name, text, hint)
    if origin is Literal:
        if text not in members:
            raise UserError(f"{name} is one of {', '.join(members)}; got {text!r}.")
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{name} is true or false; got {text!r}.")
        return text.lower() == "true"
    if hint not in (int, float, str):
        raise UserError(f"Values of {name} cannot be listed: set it by its own option, the same for all trials.")
    try:
        return hint(text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[hint]
        raise UserError(f"{name} is {kind}; got {text!r}.") from None
