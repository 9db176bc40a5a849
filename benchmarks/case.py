"""A job that every library gets alike: arrays of numpy and the numbers of the algorithm.

This file and the cases are imported by every library's environment, so they need numpy and nothing else.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Params = dict[str, np.ndarray]
"""`layer/array` -> values, laid out as in JAX: matrices (inputs, outputs), kernels (rows, columns, inputs, filters)."""


class Examples(NamedTuple):
    """Inputs and targets with the axes (tasks, examples, …)."""

    x: np.ndarray
    y: np.ndarray


class Batch(NamedTuple):
    """Tasks that are adapted to together."""

    support: Examples
    query: Examples


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    algorithm: Literal["maml", "imaml", "reptile", "adapt", "serve"]
    """`adapt` is adaptation alone, from the first parameters every time; `serve` is prediction by adapted parameters,
    whose own part, the first layer's weight and bias, stands in the place of the support set."""
    network: Literal["mlp", "conv4"]
    params: Params
    batches: tuple[Batch, ...]
    """One meta-step each; a pass goes through all of them."""
    num_steps: int
    inner_rate: float
    """Of gradient descent; of Adam in `reptile`."""
    outer_rate: float = 1e-3
    """Of Adam; of plain descent along φ - θ̂ in `reptile`."""
    regularisation: float = 0.0
    """λ of iMAML, whose inner loop is proximal gradient descent."""
    linear_steps: int = 0
    """Conjugate-gradient steps of iMAML."""
    tolerance: float = 1e-3
    """How far libraries may differ in the first loss, relative to it."""

    @property
    def num_tasks(self) -> int:
        return len(self.batches[0].support.x)
