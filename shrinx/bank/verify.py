"""Is everything in a bank as it was written?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .base import BASE, INDEX, Base, Index, read_index
from .errors import BankError, DamagedError
from .lock import locked
from .names import file_name
from .pack import Pack
from .safetensors import TensorFile
from .store import PACK, read_task, task_files


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, and why."""

    file: Path
    reason: str


def verify(path: Path) -> tuple[Damage, ...]:
    """Read every file of the bank in `path`, and name those that are damaged or do not belong there."""
    if not (path / BASE).exists():
        read_index(path)  # An error of its own if there is no bank at all.
    damages: list[Damage] = []

    def attempt(file: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return check(*arguments)
        except BankError as error:
            damages.append(Damage(file, str(error)))
            return None

    with locked(path, shared=True):
        index = attempt(path / INDEX, read_index, path)
        base = attempt(path / BASE, _check_base, path, index)
        for file in task_files(path):
            attempt(file, _check_task, file, base)
        if (path / PACK).exists():
            attempt(path / PACK, _check_pack, path / PACK, base)
    return tuple(damages)


def check_same_base(base: Base, index: Index, path: Path) -> None:
    if base.file.digest != index.base:
        raise DamagedError(f"{path / BASE} is not the base that {path / INDEX} was written for.")


def _check_base(path: Path, index: Index | None) -> Base:
    base = Base.open(path)
    base.file.check()
    if index is not None:
        check_same_base(base, index, path)
    return base


def _check_task(path: Path, base: Base | None) -> None:
    file = TensorFile.open(path, mapped=False)
    file.check()
    name = file.metadata.get("task", "")
    if path.name != file_name(name):
        raise DamagedError(f"{path} is the file of another task: it holds {name!r}.")
    if base is not None:
        base.values(name, read_task(path, name, base.file.digest))


def _check_pack(path: Path, base: Base | None) -> None:
    pack = Pack.open(path)
    pack.file.check()
    if base is None:
        return
    if pack.file.metadata.get("base") != base.file.digest:
        raise BankError(f"{path} was made for another base.")
    for name in pack.places:
        base.values(name, pack.read(name))
