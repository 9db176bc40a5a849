"""A mixed batch from a bank: one point from each of 256 sinusoid tasks, whose first layer is their own."""

import numpy as np

from ..case import Batch, Case, Examples
from .sinusoid import make_batches, make_params

TASKS = 256


def make() -> Case:
    params, generator = make_params(), np.random.default_rng(2)
    # In place of data to adapt to: what each task has of its own.
    own = Examples(*(_varied(generator, params[f"0/{name}"]) for name in ("weight", "bias")))
    queries = [batch.query for batch in make_batches(10, num_tasks=TASKS)]
    return Case(
        name="serve",
        title="Serve 256 tasks, one call",
        algorithm="serve",
        network="mlp",
        params=params,
        batches=tuple(Batch(own, Examples(query.x[:, :1], query.y[:, :1])) for query in queries),
        num_steps=0,
        inner_rate=0.0,
    )


def _varied(generator: np.random.Generator, array: np.ndarray) -> np.ndarray:
    return (array + generator.normal(0.0, 0.1, (TASKS, *array.shape))).astype(np.float32)
