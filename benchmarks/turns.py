"""Compiled programs that compute the same, timed by turns on one core."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax


def milliseconds(programs: Mapping[str, Callable[..., Any]], *arguments: Any, repeats: int) -> dict[str, float]:
    """Name -> the median of its CPU time. Ends the process if a program computes something else than the first."""
    _check({name: jax.block_until_ready(program(*arguments)) for name, program in programs.items()})
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            started = time.process_time()
            jax.block_until_ready(program(*arguments))
            seconds[name].append(time.process_time() - started)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def _check(results: dict[str, Any]) -> None:
    """Equal up to rounding, which decides here and there which of four pixels is the largest."""
    expected = next(iter(results.values()))
    for name, result in results.items():
        difference = optax.tree.norm(optax.tree.sub(result, expected)) / optax.tree.norm(expected)
        if not difference < 1e-2:
            raise SystemExit(f"{name} computes something else: its gradient differs by {difference:.1e}.")
