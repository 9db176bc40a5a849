"""Is everything in a bank as it was written?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.lock import locked
from .base import BASE, INDEX, Base, Index, read_index
from .errors import BankError, DamagedError
from .names import file_name, is_file_of, task_in
from .pack import Pack
from .safetensors import TensorFile
from .store import PACK, read_task, task_files


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was written, why, and the tasks that cannot be used for it, as far as they are known."""

    file: Path
    reason: str
    tasks: tuple[str, ...] = ()


def verify(path: Path) -> tuple[Damage, ...]:
    """Read every file of the bank in `path`; name those that are damaged or do not belong there, and their tasks."""
    if not (path / BASE).exists():
        read_index(path)  # An error of its own if there is no bank at all.
    damages: list[Damage] = []

    def attempt(file: Path, check: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return check(*arguments)
        except (BankError, OSError) as error:
            damages.append(Damage(file, str(error), _task_of(file) if check is _check_task else ()))
            return None

    with locked(path, shared=True):
        index = attempt(path / INDEX, read_index, path)
        base = attempt(path / BASE, _check_base, path, index)
        for file in task_files(path):
            attempt(file, _check_task, file, base)
        pack = attempt(path / PACK, _open_pack, path / PACK) if (path / PACK).exists() else None
        if pack is not None:
            damages += _damage_of(pack, base, {file.name for file in task_files(path)})
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
    if not is_file_of(name, path):
        raise DamagedError(f"{path} is the file of another task: it holds {name!r}.")
    if base is not None:
        base.values(name, read_task(path, name, base.file.digest))


def _task_of(file: Path) -> tuple[str, ...]:
    try:
        name = task_in(file)
    except OSError:
        return ()
    return () if name is None else (name,)


def _open_pack(path: Path) -> Pack:
    pack = Pack.open(path)
    pack.places  # noqa: B018 - Fails here if the list of tasks cannot be read.
    return pack


def _damage_of(pack: Pack, base: Base | None, own: set[str]) -> list[Damage]:
    """One at most, with all the tasks that it concerns: those with files of their `own` are not read from the pack."""
    path, lost = pack.file.path, {}
    names = [name for name in pack.places if file_name(name) not in own]
    if base is not None and pack.file.metadata.get("base") != base.file.digest:
        return [Damage(path, f"{path} was made for another base.", tuple(names))]
    for name in names:
        try:
            delta = pack.read(name)
            if base is not None:
                base.values(name, delta)
        except BankError as error:
            lost[name] = str(error)
    if lost:
        return [Damage(path, next(iter(lost.values())), tuple(lost))]
    try:
        pack.file.check()
    except DamagedError as error:
        return [Damage(path, f"{str(error).rstrip('.')}{_way_out(pack)}.")]
    return []


def _way_out(pack: Pack) -> str:
    """Of damage that no task is lost by."""
    try:
        pack.check_listed()
    except DamagedError:
        return "; put back a copy of it"
    return ", but all of its tasks can be read: pack the bank anew"
