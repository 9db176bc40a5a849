"""Serving many tasks from one model, and adapting a tenth of it: ratios on this machine.

    python benchmarks/bank.py [--repeats 30]

Candidates take turns, so that a busy machine slows all of them; the table has medians.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import shrinx as sx
from shrinx.models import mlp

ROWS = 256


def main(repeats: int) -> None:
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    for width in (40, 256, 1024):
        serving(width, repeats)
    adapting(repeats)


def serving(width: int, repeats: int) -> None:
    """A batch of 256 rows from one task, from 256 tasks, and as 256 calls; the first layer is task-specific."""
    with tempfile.TemporaryDirectory() as folder:
        params = mlp.init(jax.random.key(0), (1, width, width, 1))
        prior = sx.Prior.create(params, modules=sx.by_leaf(params))
        bank = sx.Bank.create(Path(folder) / "bank", prior, ("w0", "b0"))
        generator = np.random.default_rng(0)
        names = [f"task{number}" for number in range(ROWS)]
        for name in names:
            bank.put_part(name, [generator.normal(size=shape).astype(np.float32) for shape in (width, (1, width))])
        bank.pack()
        x = generator.normal(size=(ROWS, 1)).astype(np.float32)
        plain = jax.jit(mlp.apply)
        each = [bank.params(name) for name in names]
        time.sleep(2.5)  # The files are older than the clock's ticks now, as they are in service.
        seconds = interleaved(
            {
                "256 tasks, one call": lambda: bank.predict(mlp.apply, names, x),
                "one task, one call": lambda: bank.predict(mlp.apply, names[:1] * ROWS, x),
                "one task, apply without a bank": lambda: np.asarray(plain(each[0], x)),
                "256 calls of predict": lambda: [
                    bank.predict(mlp.apply, [name], x[row : row + 1]) for row, name in enumerate(names)
                ],
                "256 calls of apply without a bank": lambda: [
                    np.asarray(plain(one, x[row : row + 1])) for row, one in enumerate(each)
                ],
            },
            repeats,
        )
    print(
        f"Serving 256 rows, 1-{width}-{width}-1 network, {2 * width} of {sum(prior.modules.sizes):,} parameters a task"
    )
    table(seconds, "256 tasks, one call", 1e3, "ms")


def adapting(repeats: int, *, width: int = 256, depth: int = 11, steps: int = 50) -> None:
    """Adam's step on all layers, and on one of eleven."""
    params = mlp.init(jax.random.key(0), (width,) * (depth + 1))
    modules = sx.by_label(params, lambda path: f"layer {path[1:]}")
    prior = sx.Prior.create(params, modules=modules, variance=0.1)
    data = tuple(jax.random.normal(jax.random.key(seed), (32, width)) for seed in (1, 2))
    compiled = {}
    for label, trainable in {"all layers": None, "first layer": "layer 0", "last layer": f"layer {depth - 1}"}.items():

        def run(prior: sx.Prior, data: tuple, trainable: str | None = trainable) -> dict:
            solver = sx.ProximalAdam(1e-3)
            adapted = sx.adapt(mlp.squared_error, prior, data, solver, num_steps=steps, trainable=trainable)
            return prior.modules.restrict(modules.names if trainable is None else trainable).extract(adapted.params)

        compiled[label] = jax.jit(run).lower(prior, data).compile()
    seconds = interleaved(
        {
            label: lambda program=program: jax.block_until_ready(program(prior, data))
            for label, program in compiled.items()
        },
        max(5, repeats // 3),
    )
    share = modules.sizes[0] / sum(modules.sizes)
    print(
        f"Adapting {sum(modules.sizes):,} parameters or one layer of {depth} ({share:.0%}), per step of proximal Adam"
    )
    table({label: value / steps for label, value in seconds.items()}, "all layers", 1e3, "ms")
    memory = {label: float(program.memory_analysis().temp_size_in_bytes) for label, program in compiled.items()}
    print("Memory beside parameters and data")
    table(memory, "all layers", 1e-6, "MB")


def interleaved(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    for call in candidates.values():
        call()
    seconds: dict[str, list[float]] = {label: [] for label in candidates}
    for _ in range(repeats):
        for label, call in candidates.items():
            call()  # Not timed: it pays for what the others have displaced from the processor's caches.
            started = time.perf_counter()
            call()
            seconds[label].append(time.perf_counter() - started)
    return {label: statistics.median(values) for label, values in seconds.items()}


def table(values: dict[str, float], reference: str, factor: float, unit: str) -> None:
    for label, value in values.items():
        print(f"  {label:34s} {factor * value:9.3f} {unit}  x {value / values[reference]:8.2f}")
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30, help="how often every candidate is timed")
    main(parser.parse_args().repeats)
