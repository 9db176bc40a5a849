"""What the paper reports and what a run is to reach: `results/paper.toml`."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SummaryError


@dataclass(frozen=True)
class Reference:
    """The paper's value of one number, a goal for it, or both, for runs of one preset."""

    experiment: str
    algorithms: tuple[str, ...]
    condition: str
    metric: str
    paper: float | None = None
    goal: str | None = None
    preset: str = "paper"


@dataclass(frozen=True)
class Groups:
    """Two groups of modules whose values are compared: the mean of `above` over the mean of `below`."""

    experiment: str
    name: str
    above: tuple[str, ...]
    below: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    references: tuple[Reference, ...] = ()
    groups: tuple[Groups, ...] = ()


def load_paper(path: Path) -> Paper:
    entries = read_toml(path)
    try:
        return Paper(
            tuple(Reference(**_tuples(entry)) for entry in entries.get("value", ())),
            tuple(Groups(**_tuples(entry)) for entry in entries.get("groups", ())),
        )
    except TypeError as error:
        raise SummaryError(f"{path} has an entry that is none: {error}.") from error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SummaryError(f"{path} cannot be read: {error}.") from error


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
