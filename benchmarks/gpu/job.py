"""What every library is given: the sizes, and arrays of numpy. This file needs numpy and nothing else."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from ..case import Params
from ..cases.omniglot import make_params

SIDE = 28
CASES = {
    "inner-step": "A step of adaptation: mini-batch, augmentation, gradient, proximal update",
    "gradient": "The gradient alone",
    "hvp": "A product with the Hessian",
}
TOLERANCES = {"inner-step": (0.02, 0.05), "gradient": (0.02, 0.05), "hvp": (0.02, 0.15)}
"""How far the two numbers of a case's check may differ, relative to them: bfloat16 rounds to three digits."""


class Draw(NamedTuple):
    """A mini-batch of every task, and how its images are transformed; axes (tasks, images, …)."""

    rows: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    degrees: np.ndarray


@dataclass(frozen=True)
class Job:
    """Tasks with parameters of their own, in bfloat16, that take steps together."""

    tasks: int = 20
    images: int = 20
    """Of a mini-batch."""
    steps: int = 20
    """Of one call."""
    filters: int = 64
    drawings: int = 300
    """Of a task, all classes together."""
    classes: int = 20
    rate: float = 0.1
    """Of proximal gradient descent."""
    variance: float = 0.1
    small_rate: float = 1e-4
    """Of the steps along a gradient or a product alone, which should stay where they are."""

    @staticmethod
    def read(text: str) -> "Job":
        return Job(**json.loads(text))

    def write(self) -> str:
        return json.dumps(asdict(self))

    def params(self) -> Params:
        return make_params(self.classes, self.filters)

    def vector(self) -> Params:
        """A direction, of the length of one unit per layer."""
        generator = np.random.default_rng(3)
        draws = {name: generator.normal(size=array.shape) for name, array in self.params().items()}
        return {name: (draw / np.linalg.norm(draw)).astype(np.float32) for name, draw in draws.items()}

    def bytes(self) -> np.ndarray:
        """Strokes on a flat ground, as drawings are."""
        noise = np.random.default_rng(0).integers(0, 256, (self.tasks, self.drawings, SIDE, SIDE, 1), np.uint8)
        return np.where(noise > 200, noise, 0).astype(np.uint8)

    def labels(self) -> np.ndarray:
        return np.tile(np.arange(self.drawings) % self.classes, (self.tasks, 1))

    def draw(self, step: int = 0) -> Draw:
        """What is done with the drawings in the steps that libraries are compared by.

        In `inner-step` each library draws for itself while it is timed.
        """
        generator, shape = np.random.default_rng((2, step)), (self.tasks, self.images)
        order = np.argsort(generator.uniform(size=(self.tasks, self.drawings)), axis=1)
        return Draw(
            rows=order[:, : self.images],
            scale=generator.uniform(0.8, 1.2, shape).astype(np.float32),
            shift=generator.uniform(-0.2, 0.2, (*shape, 2)).astype(np.float32),
            degrees=generator.integers(0, 360, shape),
        )
