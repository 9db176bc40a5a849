"""Time the generation of speech by the WaveNet of preset paper: seconds of computing for a second of sound.

    PYTHONPATH=. python benchmarks/speaking.py [--strings 1 16] [--seconds 2] [--out speaking.json]

Weights are random and pitch and phones constant, which takes as long as speech does. Strings are generated side by
side, so "a second of sound" is a second of each of them; compilation is not counted.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from shrinx.data.speech import RATE
from shrinx.models.wavenet import WaveNet
from shrinx.models.wavenet_speak import speak
from shrinx.runs.folder import environment


def measure(network: WaveNet, *, strings: int, seconds: float) -> dict[str, float]:
    """The best of three turns."""
    params = network.init(jax.random.key(0))
    frames = max(1, round(seconds * RATE / network.hop))
    f0 = jnp.full((strings, frames), 120.0, jnp.float16)
    phones = jnp.ones((strings, frames), jnp.uint8)
    turns = []
    for turn in range(4):
        started = time.perf_counter()
        jax.block_until_ready(speak(network, params, f0, phones, jax.random.key(turn)))
        turns.append(time.perf_counter() - started)
    spent = min(turns[1:])
    sound = frames * network.hop / RATE
    return {
        "strings": strings,
        "seconds_per_second": round(spent / sound, 3),
        "real_time_of_all": round(strings * sound / spent, 2),
        "ready_in": round(turns[0] - spent, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strings", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    network = WaveNet(dtype=options.dtype)
    rows = []
    for strings in options.strings:
        rows.append({"dtype": options.dtype, **measure(network, strings=strings, seconds=options.seconds)})
        print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps({"rows": rows, **environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
