"""Reptile on the sinusoid: 5 tasks, 100 steps of Adam."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="sinusoid-reptile",
        title="Sinusoid, Reptile, 100 Adam steps",
        algorithm="reptile",
        network="mlp",
        params=make_params(),
        batches=make_batches(4, num_tasks=5),
        num_steps=100,
        inner_rate=1e-3,
        outer_rate=0.1,
    )
