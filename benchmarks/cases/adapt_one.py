"""Adaptation of a single sinusoid task, ten steps: what a call costs."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="adapt-1",
        title="Adapt 1 task, 10 steps",
        algorithm="adapt",
        network="mlp",
        params=make_params(),
        batches=make_batches(20, num_tasks=1),
        num_steps=10,
        inner_rate=0.01,
    )
