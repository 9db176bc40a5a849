"""Count the operations of σ-Reptile's update on WaveNet, as it is and packed, with blocks one by one and as a loop.

    PYTHONPATH=. python benchmarks/packing.py [--compile] [--out packing.json]

They are those of the lowered program, one a line; `--compile` adds how long they take to compile.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shrinx as sx
from shrinx.experiments.algorithms import make_learner
from shrinx.experiments.speech import preset_config
from shrinx.models.wavenet import Speech, WaveNet
from shrinx.runs.folder import environment

TASKS, STRINGS, FRAMES = 4, 2, 10


def speech(network: WaveNet) -> Speech:
    """Silence: what is computed does not depend on what is heard."""
    shape = (TASKS, STRINGS, FRAMES)
    return Speech(
        samples=jnp.full((TASKS, STRINGS, FRAMES * network.hop), 128, jnp.uint8),
        f0=jnp.zeros(shape, jnp.float16),
        phones=jnp.zeros(shape, jnp.uint8),
        speaker=jnp.zeros(shape[:2], jnp.int32),
    )


def update_of(*, packed: bool, unroll: bool) -> tuple[Callable[..., Any], Any]:
    """An update of the learner, and the state it begins with."""
    network = WaveNet(dtype="bfloat16", unroll=unroll)
    learner = make_learner(preset_config("sigma-reptile", "paper"))
    prior, loss_fn = sx.Prior.create(network.init(jax.random.key(0)), variance=1e3), network.negative_log_likelihood
    if packed:
        packing = sx.Packing(prior)
        prior, loss_fn = packing.pack_prior(prior), packing.loss_fn(loss_fn)
    tasks = sx.Task(speech(network), speech(network))
    return lambda state, key: learner.update(loss_fn, state, tasks, key=key), learner.init(prior)


def measure(*, packed: bool, unroll: bool, compiled: bool) -> dict[str, Any]:
    update, state = update_of(packed=packed, unroll=unroll)
    lowered = jax.jit(update).lower(state, jax.random.key(0))
    row: dict[str, Any] = {"packed": packed, "unroll": unroll, "operations": lowered.as_text().count("\n")}
    if not compiled:
        return row
    started = time.perf_counter()
    lowered.compile()
    return row | {"seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for packed, unroll in product((True, False), (False, True)):
        rows.append(measure(packed=packed, unroll=unroll, compiled=options.compile))
        print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": rows, **environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
