"""What the sinusoid cases share: y = a sin(x - b), ten points to adapt to and ten to judge by, a 1-40-40-1 network."""

import itertools

import numpy as np

from ..case import Batch, Examples, Params


def make_batches(count: int, num_tasks: int) -> tuple[Batch, ...]:
    generator = np.random.default_rng(0)
    return tuple(_batch(generator, num_tasks) for _ in range(count))


def make_params() -> Params:
    """Uniform in ±1/√inputs, as PyTorch starts. Larger weights let a hundred steps of plain descent diverge."""
    generator = np.random.default_rng(1)
    params: Params = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise((1, 40, 40, 1))):
        bound = inputs**-0.5
        params[f"{layer}/weight"] = generator.uniform(-bound, bound, (inputs, outputs)).astype(np.float32)
        params[f"{layer}/bias"] = generator.uniform(-bound, bound, outputs).astype(np.float32)
    return params


def _batch(generator: np.random.Generator, num_tasks: int) -> Batch:
    amplitude = generator.uniform(0.1, 5.0, (num_tasks, 1, 1))
    phase = generator.uniform(0.0, np.pi, (num_tasks, 1, 1))
    x = generator.uniform(-5.0, 5.0, (num_tasks, 20, 1))
    y = amplitude * np.sin(x - phase)
    x, y = x.astype(np.float32), y.astype(np.float32)
    return Batch(support=Examples(x[:, :10], y[:, :10]), query=Examples(x[:, 10:], y[:, 10:]))
