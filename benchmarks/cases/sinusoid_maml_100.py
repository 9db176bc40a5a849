"""MAML on the sinusoid with a long inner loop: 5 tasks, 100 steps, differentiated through."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="sinusoid-maml-100",
        title="Sinusoid, MAML, 100 steps",
        algorithm="maml",
        network="mlp",
        params=make_params(),
        batches=make_batches(4, num_tasks=5),
        num_steps=100,
        inner_rate=0.01,
    )
