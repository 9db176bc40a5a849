"""Memory of one meta-gradient against the number of inner steps, as the compiler plans it: nothing is run.

python -m benchmarks.memory

The network is the 4-convolution one, with one task of 20 images. Beside it what PyTorch takes, which has no plan and is
measured. Writes `results/bench/memory.json` and a table in the docs.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax

import shrinx as sx
from shrinx.models.conv import ConvNet
from shrinx.runs.files import write_text

from .environments import REQUIREMENTS, python_of
from .report import PAGE, RESULTS, fill

HORIZONS = (10, 100, 1000, 10_000)
AFFORDABLE = (10, 100)
"""Those that PyTorch's graph of all steps fits into memory for."""

CG = sx.CG(max_steps=5, damping=0.1)
META_GRADIENTS = {
    "σ-iMAML": sx.Predictive(sx.Implicit(CG)),
    "σ-Reptile": sx.Reptile(sx.Implicit(CG)),
    "σ-Reptile, `Unroll(last=20)`": sx.Reptile(sx.Unroll(last=20)),
    "σ-MAML, `Unroll()`": sx.Predictive(sx.Unroll()),
    "σ-MAML, `Unroll(checkpoint=False)`": sx.Predictive(sx.Unroll(checkpoint=False)),
    "σ-MAML, `Unroll(mixed=True)`": sx.Predictive(sx.Unroll(mixed=True)),
}


def planned_bytes(meta_gradient: sx.AbstractMetaGradient, num_steps: int) -> int:
    """Memory for arguments, results and everything in between."""
    learner = sx.Learner(meta_gradient, sx.ProximalGD(0.1), num_steps=num_steps, optimiser=optax.sgd(0.1))
    network = ConvNet((28, 28, 1), num_classes=20)
    prior = jax.eval_shape(lambda: sx.Prior.create(network.init(jax.random.key(0)), variance=1.0))
    batch = (jax.ShapeDtypeStruct((1, 20, 28, 28, 1), jnp.float32), jax.ShapeDtypeStruct((1, 20), jnp.int32))
    program = jax.jit(lambda p, t: learner.gradient(network.cross_entropy, p, t)[0])
    plan = program.lower(prior, sx.Task(support=batch, query=batch)).compile().memory_analysis()
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes + plan.output_size_in_bytes


def peer_megabytes(num_steps: int) -> float:
    """What higher takes, in a process of its own."""
    command = [python_of("torch"), "-m", "benchmarks.memory_peer", str(num_steps)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(rows: list[dict]) -> str:
    lines = [f"| MB at … steps | {' | '.join(f'{steps:,}' for steps in HORIZONS)} |", "|---|" + "---:|" * len(HORIZONS)]
    for name in dict.fromkeys(row["method"] for row in rows):
        found = {row["num_steps"]: f"{row['mb']:,.1f}" for row in rows if row["method"] == name}
        lines.append(f"| {name} | {' | '.join(found.get(steps, '–') for steps in HORIZONS)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = []
    for name, meta_gradient in META_GRADIENTS.items():
        for num_steps in HORIZONS:
            planned = round(planned_bytes(meta_gradient, num_steps) / 1e6, 2)
            print(f"{name}, {num_steps} steps: {planned} MB", file=sys.stderr)
            rows.append({"method": name, "num_steps": num_steps, "mb": planned, "with": f"jax {jax.__version__}"})
    for num_steps in AFFORDABLE:
        row = {"method": "MAML by higher, measured", "num_steps": num_steps, "mb": peer_megabytes(num_steps)}
        rows.append(row | {"with": ", ".join(REQUIREMENTS["torch"][:3:2])})
    write_text(RESULTS / "memory.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    fill(PAGE, "memory", table(rows))


if __name__ == "__main__":
    # Buffers are planned before code is generated, so that the code need not be good.
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    main()
