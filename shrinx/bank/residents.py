"""Tasks that are at hand: their arrays stacked on the device, the least recently used making room for others.

A batch then needs no more than the position of each of its tasks. Positions and contents are arguments of the compiled
predictor, never constants in it, so that no mix of tasks compiles anything anew.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import BankError
from .names import check_name
from .store import Store

# A file system's clock ticks in milliseconds; what was written within this time of a look may not show.
_SETTLED = 2_000_000_000


class Residents:
    """At most `capacity` tasks of `store`, as `load(name)` gives them: a tree of arrays, the same for every task.

    Not for several threads at once: `positions` may overwrite the stack that an earlier call returned.
    """

    def __init__(self, store: Store, load: Callable[[str], Any], capacity: int):
        self._store = store
        self._load = load
        self._capacity = capacity
        self._changed: tuple[int, int] | None = None
        self._calls = 0
        self._clear(0)

    def _clear(self, size: int) -> None:
        self._stack: Any = None
        self._place: dict[str, int] = {}
        self._tenant: list[str | None] = [None] * size
        self._signature: list[Any] = [None] * size
        self._last_call = np.zeros(size, np.int64)

    def positions(self, names: Sequence[str]) -> tuple[Any, np.ndarray]:
        """The stack, and for every name its row there. Reads the files of tasks that are not at hand, and no others."""
        self._forget_what_changed()
        try:
            positions = self._look_up(names)
        except KeyError:
            self._bring(list(dict.fromkeys(names)))
            positions = self._look_up(names)
        self._calls += 1
        self._last_call[positions] = self._calls
        return self._stack, positions

    def _look_up(self, names: Sequence[str]) -> np.ndarray:
        return np.fromiter(map(self._place.__getitem__, names), np.int32, len(names))

    def _bring(self, wanted: list[str]) -> None:
        if len(wanted) > self._capacity:
            raise BankError(
                f"The batch has {len(wanted):,} different tasks, and {self._capacity:,} are kept at hand: make it "
                f"smaller, or open the bank with `cache={_power_of_two(len(wanted))}`."
            )
        if len(wanted) > len(self._tenant):
            # Start again with room for the batch and, within the limit, for all tasks there are.
            size = _power_of_two(max(len(wanted), self._store.count(), 2 * len(self._tenant)))
            self._clear(min(self._capacity, size))
        missing = [check_name(name) for name in wanted if name not in self._place]
        # Signatures first: if a task is written anew while it is read, the next call reads it again.
        signatures = [self._store.signature(name) for name in missing]
        rows = [self._load(name) for name in missing]
        last_call = self._last_call.copy()
        last_call[[self._place[name] for name in wanted if name in self._place]] = self._calls + 1
        places = np.argsort(last_call, kind="stable")[: len(missing)].astype(np.int32)
        # Evicted before and registered after they are overwritten: an interruption in between must leave no name with
        # the row of another.
        for place in places.tolist():
            self._evict(place)
        self._write(places, rows)
        for place, name, signature in zip(places.tolist(), missing, signatures, strict=True):
            self._tenant[place], self._signature[place], self._place[name] = name, signature, place

    def _write(self, places: np.ndarray, rows: list[Any]) -> None:
        if self._stack is None:
            size = len(self._tenant)
            self._stack = jax.tree.map(lambda row: jnp.zeros((size, *row.shape), row.dtype), rows[0])
        # Repeats of the last, so that there is one program for all numbers up to a power of two.
        padding = _power_of_two(len(rows)) - len(rows)
        padded = jax.tree.map(lambda *arrays: np.stack(arrays), *rows, *rows[-1:] * padding)
        try:
            self._stack = _overwrite(self._stack, np.append(places, places[-1:].repeat(padding)), padded)
        except BaseException:
            # The stack was given away.
            self._clear(0)
            raise

    def _evict(self, place: int) -> None:
        name = self._tenant[place]
        if name is not None:
            del self._place[name]
        self._tenant[place], self._last_call[place] = None, 0

    def _forget_what_changed(self) -> None:
        changed = self._store.changed()
        if changed == self._changed:
            return
        for name, place in list(self._place.items()):
            signature = self._store.signature(name)
            if signature is None or signature != self._signature[place]:
                self._evict(place)
        settled = time.time_ns() - max(changed) > _SETTLED
        self._changed = changed if settled else None


@jax.jit(donate_argnums=0)
def _overwrite(stack: Any, places: Any, rows: Any) -> Any:
    return jax.tree.map(lambda whole, row: whole.at[places].set(row), stack, rows)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
