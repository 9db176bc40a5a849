"""Weak scaling of augmented Omniglot: a meta-step measured on one GPU, and a model of what others add to it.

python -m benchmarks.scaling [--write]

Every GPU has the tasks of the measured run, so that the batch grows with their number. A meta-step then takes

    compute + waiting + communication

compute        what the run's log says for one GPU (`results/aug-omniglot/RUN/metrics.jsonl`, the median over chunks)
waiting        for the slowest of n devices, whose times vary by a share `JITTER`: JITTER x compute x √(2 ln n), like
               the largest of n normal numbers
communication  an all-reduce of the meta-gradient (float32: one number per parameter and module, for each seed), first
               in a machine, then between machines: 2 (g - 1) / g x bytes / rate + 2 log2(g) x latency, for g parties
"""

import argparse
import itertools
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import jax

import shrinx as sx
from shrinx.models.conv import ConvNet

from .report import ROOT, fill

PAGE, RUNS = ROOT / "docs" / "scaling.md", ROOT / "results" / "aug-omniglot"
COUNTS = (1, 8, 64, 512)
JITTER = 0.01
GPUS_PER_MACHINE = 8
TITLES = {"large-1500-reptile": "Reptile", "large-1500-sigma-reptile": "σ-Reptile"}


@dataclass(frozen=True)
class Link:
    """What connects the parties of an all-reduce."""

    bytes_per_second: float
    latency: float
    """Seconds a step of the all-reduce takes at least, the launch of its kernel included."""

    def all_reduce(self, size: float, parties: int) -> float:
        if parties == 1:
            return 0.0
        return 2 * (parties - 1) / parties * size / self.bytes_per_second + 2 * math.log2(parties) * self.latency


NVLINK = Link(450e9, 5e-6)
"""Of an H200, in one direction."""
INFINIBAND = Link(50e9, 10e-6)
"""400 Gbit/s for every GPU."""


@dataclass(frozen=True)
class Measured:
    title: str
    tasks: int
    seeds: int
    seconds: float

    @staticmethod
    def read(folder: Path) -> "Measured":
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        request = json.loads((folder / "config.json").read_text())
        # The first chunk was compiled.
        chunks = itertools.pairwise(rows[1:])
        seconds = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in chunks]
        tasks = request["config"]["tasks_per_update"]
        return Measured(TITLES[folder.name], tasks, request["seeds"], statistics.median(seconds))


def meta_gradient_bytes() -> int:
    """Of one seed."""
    params = jax.eval_shape(ConvNet((28, 28, 1), 20).init, jax.random.key(0))
    return 4 * (sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) + len(sx.by_layer(params)))


def parts(measured: Measured, count: int) -> tuple[float, float, float]:
    """Compute, waiting and communication, in seconds."""
    size, local = measured.seeds * meta_gradient_bytes(), min(count, GPUS_PER_MACHINE)
    waiting = JITTER * measured.seconds * math.sqrt(2 * math.log(count))
    return measured.seconds, waiting, NVLINK.all_reduce(size, local) + INFINIBAND.all_reduce(size, count // local)


def table(runs: list[Measured]) -> str:
    lines = [
        "| algorithm | GPUs | tasks | compute, ms | waiting, ms | communication, ms | meta-step, ms | efficiency |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for measured, count in itertools.product(runs, COUNTS):
        found = parts(measured, count)
        times = " | ".join(f"{1e3 * seconds:.{digits}f}" for seconds, digits in zip(found, (1, 1, 3), strict=True))
        total, tasks = sum(found), count * measured.tasks * measured.seeds
        lines.append(
            f"| {measured.title} | {count} | {tasks:,} | {times} | {1e3 * total:.1f} | {measured.seconds / total:.1%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/scaling.md")
    options = parser.parse_args()
    text = table([Measured.read(RUNS / name) for name in TITLES])
    print(text, end="")
    if options.write:
        fill(PAGE, "scaling", text)


if __name__ == "__main__":
    main()
