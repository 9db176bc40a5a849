"""Tasks that are at hand: their arrays stacked on the device, the least recently used making room for others.

A batch then needs no more than the position of each of its tasks. Positions and contents are arguments of the compiled
predictor, never constants in it, so that no mix of tasks compiles anything anew.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import BankError
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
        self._size = 0
        self._stack: Any = None
        self._place: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        self._free: list[int] = []
        self._changed: tuple[int, int] | None = None

    def positions(self, names: Sequence[str]) -> tuple[Any, np.ndarray]:
        """The stack, and for every name its row there. Reads the files of tasks that are not at hand, and no others."""
        wanted = dict.fromkeys(names)
        if len(wanted) > self._capacity:
            raise BankError(
                f"The batch has {len(wanted):,} different tasks, and {self._capacity:,} are kept at hand: make it "
                f"smaller, or open the bank with `cache={_power_of_two(len(wanted))}`."
            )
        self._forget_what_changed()
        for name in wanted:
            if name in self._place:
                self._place.move_to_end(name)
        missing = [name for name in wanted if name not in self._place]
        if missing:
            # Signatures first: if a task is written anew while it is read, the next call reads it again.
            signatures = [self._store.signature(name) for name in missing]
            rows = [self._load(name) for name in missing]
            if len(wanted) > self._size:
                return self._grow(rows[0], names)
            self._add(missing, signatures, rows)
        return self._stack, np.fromiter((self._place[name][0] for name in names), np.int32, len(names))

    def _add(self, names: list[str], signatures: list[Any], rows: list[Any]) -> None:
        places = []
        for name, signature in zip(names, signatures, strict=True):
            # The front of the queue is nobody of this batch: those were moved to its end.
            place = self._free.pop() if self._free else self._place.popitem(last=False)[1][0]
            self._place[name] = (place, signature)
            places.append(place)
        padding = _power_of_two(len(rows)) - len(rows)
        rows, places = rows + rows[-1:] * padding, places + places[-1:] * padding
        self._stack = _write(self._stack, np.asarray(places, np.int32), jax.tree.map(lambda *a: np.stack(a), *rows))

    def _grow(self, row: Any, names: Sequence[str]) -> tuple[Any, np.ndarray]:
        """Start again with room for this batch and, within the limit, for all tasks there are."""
        self._size = min(self._capacity, _power_of_two(max(len(set(names)), self._store.count(), 2 * self._size)))
        self._stack = jax.tree.map(lambda a: jnp.zeros((self._size, *a.shape), a.dtype), row)
        self._place.clear()
        self._free = list(range(self._size))
        return self.positions(names)

    def _forget_what_changed(self) -> None:
        changed = self._store.changed()
        if changed == self._changed:
            return
        for name, (place, signature) in list(self._place.items()):
            if self._store.signature(name) != signature:
                del self._place[name]
                self._free.append(place)
        settled = time.time_ns() - max(changed) > _SETTLED
        self._changed = changed if settled else None


@jax.jit(donate_argnums=0)
def _write(stack: Any, places: Any, rows: Any) -> Any:
    return jax.tree.map(lambda whole, row: whole.at[places].set(row), stack, rows)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
