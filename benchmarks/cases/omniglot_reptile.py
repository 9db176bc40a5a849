"""Reptile on Omniglot's shapes: 5 tasks of 20 classes, 100 steps of Adam on 20 images."""

from ..case import Case
from .omniglot import make_batches, make_params


def make() -> Case:
    return Case(
        name="omniglot-reptile",
        title="Omniglot conv4, Reptile, 100 Adam steps",
        algorithm="reptile",
        network="conv4",
        params=make_params(20),
        batches=make_batches(1, num_tasks=5, num_classes=20),
        num_steps=100,
        inner_rate=1e-3,
        outer_rate=0.1,
        tolerance=5e-2,  # A hundred steps of Adam magnify differences of rounding.
    )
