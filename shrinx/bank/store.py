"""The tasks on disk: one file each, and the pack. The files are the truth; there is no list to fight over.

Adding a task writes beside its file and renames, sharing the lock with others that add. Whatever removes something
(delete, rename, pack) holds the lock alone, and writes before it removes: a crash leaves a task twice, never lost.
A task's own file counts before the pack, which is older.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runs.lock import locked
from .delta import Delta
from .errors import BankError, DamagedError
from .names import check_name, file_name, is_name, task_in
from .pack import Pack, write_pack
from .safetensors import TensorFile, write_tensors

FORMAT = "shrinx-task-1"
FOLDER = "tasks"
PACK = "packed.safetensors"
_TASK_REMEDY = "put back a copy of that file, or adapt the task anew, or delete it"
_PACK_REMEDY = "put back a copy of that file, or remove it and adapt its tasks anew; tasks with files of their own stay"


@dataclass(frozen=True, eq=False)
class Store:
    """The tasks of the bank in `path`, whose base has the digest `base`."""

    path: Path
    base: str
    # Which task a file holds never changes, since the file's name is a digest of the task's.
    _known: dict[str, str] = field(default_factory=dict, repr=False)
    _packs: dict[tuple[int, ...], Pack] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        return self.path / FOLDER

    def file(self, name: str) -> Path:
        return self.folder / file_name(name)

    def names(self) -> tuple[str, ...]:
        """All tasks whose names can be known, damaged ones too; `unnamed` has the rest."""
        own = [self._name_in(path) for path in task_files(self.path)]
        return tuple(sorted({*(name for name in own if name is not None), *self._packed()}))

    def unnamed(self) -> dict[Path, str]:
        """Files with tasks of unknown names, and why these are unknown."""
        reasons = {}
        for path in task_files(self.path):
            try:
                known = self._task_in(path)
            except OSError as error:
                # Otherwise it was removed meanwhile.
                if not isinstance(error, FileNotFoundError) or path.is_symlink():
                    reasons[path] = f"{path} cannot be read ({error.strerror or error})."
                continue
            if known is None:
                remedy = "put back a copy of it, or remove it"
                reasons[path] = f"{path} is damaged: it cannot be told which task it holds; {remedy}."
        try:
            self._pack()
        except BankError as error:
            reasons[self.path / PACK] = str(error)
        return reasons

    def __contains__(self, name: object) -> bool:
        """Whether there is such a task; an error if the pack, which may have it, cannot be read."""
        if not isinstance(name, str) or not is_name(name):
            return False
        # In this order, as in `read`.
        return self.file(name).exists() or ((pack := self._pack()) is not None and name in pack.places)

    def count(self) -> int:
        """How many tasks there are at most, without looking into their files."""
        return len(task_files(self.path)) + len(self._packed())

    def read(self, name: str) -> Delta:
        """A task, checked: the damage of its file, and the base it was made for."""
        check_name(name)
        try:
            return read_task(self.file(name), name, self.base)
        except FileNotFoundError:
            # Looked at only now: tasks move from files into the pack, which is in place before the files go.
            pack = self._pack()
        except DamagedError as error:
            raise _mendable(error, _TASK_REMEDY) from error
        if pack is None or name not in pack.places:
            raise self._unknown(name)
        try:
            return pack.read(name)
        except DamagedError as error:
            raise _mendable(error, _TASK_REMEDY) from error

    def write(self, name: str, delta: Delta) -> None:
        check_name(name)
        with locked(self.path, shared=True):
            self._write(name, delta)

    def describe(self, name: str, about: Mapping[str, Any]) -> None:
        """Keep arrays beside a task's parameters, in place of those that were there."""
        with locked(self.path):
            self._write(name, self.read(name).about(about))

    def delete(self, name: str) -> None:
        check_name(name)
        with locked(self.path):
            if name not in self:  # Not by reading: a damaged task can be deleted too.
                raise self._unknown(name)
            self._remove(name, self._rest(name))

    def rename(self, old: str, new: str) -> None:
        check_name(new)
        with locked(self.path):
            delta = self.read(old)
            if new in self:
                raise BankError(f"There is a task {new!r} in {self.path} already; delete it first.")
            rest = self._rest(old)  # Before anything is written: this may refuse.
            self._write(new, delta)
            self._remove(old, rest)

    def pack(self) -> None:
        """Move all tasks into the pack, and clear what interrupted writers left behind."""
        with locked(self.path):
            pack = self._pack()  # Not over one that cannot be read, whatever is in it.
            if pack is not None:
                _check_replaceable(pack)
            names = self.names()
            if names:
                write_pack(self.path / PACK, {name: self.read(name) for name in names}, self.base)
            for path in [self.file(name) for name in names]:
                path.unlink(missing_ok=True)
            for path in [*self.folder.glob(".*.part"), *self.path.glob(".*.part")]:
                path.unlink()

    def signature(self, name: str) -> tuple[int, ...] | None:
        """Something that changes when the task is written anew; `None` if it is gone."""
        signature = _signature(self.file(name))
        if signature is None and name in self._packed():
            signature = _signature(self.path / PACK)
        return signature

    def changed(self) -> tuple[int, int]:
        """When files were last added or removed, and when the pack was, in nanoseconds of the file system's clock."""
        own, packed = _signature(self.folder), _signature(self.path / PACK)
        return 0 if own is None else own[1], 0 if packed is None else packed[1]

    def _write(self, name: str, delta: Delta) -> None:
        metadata = {"format": FORMAT, "task": name, "base": self.base}
        metadata |= {"encoding": delta.encoding, "error": repr(delta.error)}
        write_tensors(self.file(name), delta.tensors, metadata)

    def _rest(self, name: str) -> dict[str, tuple[Delta, bytes]] | None:
        """The other tasks in the pack, as they are: a damaged one must not keep this one from being removed.

        `None` if this one is not there, so that the pack can stay.
        """
        pack = self._pack()
        if pack is None or name not in pack.places:
            return None
        _check_replaceable(pack)
        return {other: pack.row(other) for other in pack.places if other != name}

    def _remove(self, name: str, rest: dict[str, tuple[Delta, bytes]] | None) -> None:
        if rest is not None:
            deltas = {other: delta for other, (delta, _) in rest.items()}
            digests = {other: digest for other, (_, digest) in rest.items()}
            # First the pack: the other way round a crash would bring an old version back.
            write_pack(self.path / PACK, deltas, self.base, digests)
        self.file(name).unlink(missing_ok=True)

    def _unknown(self, name: str) -> BankError:
        known = self.names()
        some = ", ".join(map(repr, known[:5])) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
        return BankError(f"There is no task {name!r} in {self.path}; known: {some or 'none yet'}.")

    def _name_in(self, path: Path) -> str | None:
        """The task in a file, see `task_in`; `None` also if there is no reading it."""
        try:
            return self._task_in(path)
        except OSError:
            return None

    def _task_in(self, path: Path) -> str | None:
        name = self._known.get(path.name) or task_in(path)
        if name is not None:
            self._known[path.name] = name
        return name

    def _packed(self) -> Collection[str]:
        """The tasks in the pack, none if it cannot be read: the others can be used all the same."""
        try:
            pack = self._pack()
        except BankError:
            return ()
        return () if pack is None else pack.places.keys()

    def _pack(self) -> Pack | None:
        signature = _signature(self.path / PACK)
        if signature is None:
            return None
        pack = self._packs.get(signature)
        if pack is None:
            try:
                pack = Pack.open(self.path / PACK)
                pack.places  # noqa: B018 - Fails here, not later, if the list cannot be read.
            except DamagedError as error:
                raise _mendable(error, _PACK_REMEDY) from error
            if pack.file.metadata.get("base") != self.base:
                raise BankError(
                    f"{self.path / PACK} was made for another base and does not belong into this bank: {_PACK_REMEDY}."
                )
            self._packs.clear()
            self._packs[signature] = pack
        return pack


def task_files(bank: Path) -> list[Path]:
    try:
        names = os.listdir(bank / FOLDER)  # Not by `glob`, which takes a folder that cannot be read for an empty one.
    except FileNotFoundError:
        return []
    return sorted(bank / FOLDER / name for name in names if name.endswith(".safetensors") and name[0] != ".")


def read_task(path: Path, name: str, base: str) -> Delta:
    """The task `name` from a file of its own."""
    file = TensorFile.open(path, mapped=False)
    file.check()
    if file.metadata.get("base") != base:
        raise BankError(f"{path} was made for another base; adapt the task anew and put it into this bank.")
    if file.metadata.get("format") != FORMAT or file.metadata.get("task") != name:
        raise DamagedError(f"{path} is damaged: it does not hold task {name!r}.")
    tensors = {key: file.array(key) for key in file.entries}
    try:
        return Delta(tensors, file.metadata["encoding"], float(file.metadata["error"]))
    except (KeyError, ValueError) as error:
        raise DamagedError(f"{path} is damaged: it does not say how task {name!r} is stored.") from error


def _check_replaceable(pack: Pack) -> None:
    try:
        pack.check_listed()
    except DamagedError as error:
        raise _mendable(error, _PACK_REMEDY) from error


def _mendable(error: DamagedError, remedy: str) -> DamagedError:
    return DamagedError(f"{str(error).rstrip('.')}; {remedy}.")


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)
