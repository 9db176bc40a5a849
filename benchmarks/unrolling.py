"""Ways to go back through inner steps, by network: CPU time and memory of a meta-gradient of MAML.

python -m benchmarks.unrolling [--networks 64x5 16x20] [--repeats 5] [--out results/bench/unrolling.json]

A network is filters x steps. Ways take turns on one core, with two tasks one after the other; the table has medians in
milliseconds of CPU time, and the megabytes that the compiler plans.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import shrinx as sx
from shrinx.models.conv import ConvNet
from shrinx.runs.folder import environment

from .turns import milliseconds
from .worker import one_core

WAYS = {
    "states kept": sx.Unroll(),
    "all kept": sx.Unroll(checkpoint=False),
    "mixed modes": sx.Unroll(mixed=True),
}
TASKS, IMAGES, CLASSES = 2, 20, 20
RATE = 1e-3
"""So small that twenty steps do not blow rounding errors up, and gradients can be compared."""


def gradient_of(network: ConvNet, adjoint: sx.Unroll, num_steps: int):
    learner = sx.Learner(
        sx.Predictive(adjoint), sx.ProximalGD(RATE), num_steps=num_steps, optimiser=optax.sgd(0.1), chunk_size=1
    )
    return jax.jit(lambda prior, tasks: learner.gradient(network.cross_entropy, prior, tasks)[0])


def measure(filters: int, num_steps: int, repeats: int) -> list[dict]:
    network = ConvNet((28, 28, 1), CLASSES, num_filters=filters)
    prior = sx.Prior.create(network.init(jax.random.key(0)), variance=100.0)
    images = jax.random.uniform(jax.random.key(1), (TASKS, IMAGES, 28, 28, 1))
    batch = images, jnp.broadcast_to(jnp.arange(IMAGES) % CLASSES, (TASKS, IMAGES))
    tasks = sx.Task(batch, batch)
    programs = {
        way: gradient_of(network, adjoint, num_steps).lower(prior, tasks).compile() for way, adjoint in WAYS.items()
    }
    found = milliseconds(programs, prior, tasks, repeats=repeats)
    return [
        {
            "filters": filters,
            "steps": num_steps,
            "way": way,
            "ms": round(found[way], 1),
            "mb": round(planned.temp_size_in_bytes / 1e6, 1),
        }
        for way, program in programs.items()
        if (planned := program.memory_analysis())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["64x1", "64x5", "16x20", "64x20"], metavar="FILTERSxSTEPS")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with one_core():
        jax.devices()
    rows = []
    print("| filters x steps | way | ms | MB |\n|---|---|---:|---:|")
    for network in options.networks:
        filters, num_steps = map(int, network.split("x"))
        for row in measure(filters, num_steps, options.repeats):
            print(f"| {network} | {row['way']} | {row['ms']} | {row['mb']} |", flush=True)
            rows.append(row)
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": rows, **environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
