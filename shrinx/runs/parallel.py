"""Seeds side by side: in one program on an accelerator, spread over the cores of a CPU.

XLA runs the small operations of small networks on one core, so that a vmapped seed costs as much there as a separate
one. The threads run compiled code, which Python's lock does not hold up.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def over_seeds(function: Callable[..., Any], *, at_once: int | None = None) -> Callable[..., Any]:
    """Compile `function(one, *shared)` into `mapped(many, *shared)`, with `one` a slice of `many` for every seed.

    All leaves of `many` and of the result have a leading axis of seeds. Arrays anywhere in `shared` are arguments of
    the compiled program, everything else in it is static. With `at_once` the program takes so many seeds at a time.
    """

    @eqx.filter_jit
    def together(many: Any, *shared: Any) -> Any:
        def of_one(one: Any) -> Any:
            return function(one, *shared)

        if at_once is None or at_once >= len(jax.tree.leaves(many)[0]):
            return jax.vmap(of_one)(many)
        return jax.lax.map(of_one, many, batch_size=at_once)

    def mapped(many: Any, *shared: Any) -> Any:
        groups = _groups(many)
        with ThreadPoolExecutor(len(groups)) as pool:
            parts = list(pool.map(lambda group: jax.block_until_ready(together(group, *shared)), groups))
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    return mapped


def _groups(many: Any) -> list[Any]:
    # Where a program runs on several devices, all must begin the same one first.
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return [many]
    num_seeds = len(jax.tree.leaves(many)[0])
    count = min(num_seeds, num_cores())
    edges = [num_seeds * index // count for index in range(count + 1)]
    return [
        jax.tree.map(lambda leaf, first=first, last=last: leaf[first:last], many)
        for first, last in itertools.pairwise(edges)
    ]


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
