"""MAML on the sinusoid: 5 tasks, 5 steps of gradient descent, differentiated through."""

from ..case import Case
from .sinusoid import make_batches, make_params


def make() -> Case:
    return Case(
        name="sinusoid-maml-5",
        title="Sinusoid, MAML, 5 steps",
        algorithm="maml",
        network="mlp",
        params=make_params(),
        batches=make_batches(20, num_tasks=5),
        num_steps=5,
        inner_rate=0.01,
    )
