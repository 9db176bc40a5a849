"""Adaptation of a thousand sinusoid tasks, ten steps: what a task costs."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="adapt-1000",
        title="Adapt 1,000 tasks, 10 steps",
        algorithm="adapt",
        network="mlp",
        params=make_params(),
        batches=make_batches(1, num_tasks=1000),
        num_steps=10,
        inner_rate=0.01,
    )
