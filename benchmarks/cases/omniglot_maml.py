"""MAML on Omniglot's shapes: 4 tasks of 5 classes, one image each, one step, differentiated through."""

from ..case import Case
from .omniglot import make_batches, make_params


def make() -> Case:
    return Case(
        name="omniglot-maml",
        title="Omniglot conv4, MAML, 1 step",
        algorithm="maml",
        network="conv4",
        params=make_params(5),
        batches=make_batches(4, num_tasks=4, num_classes=5),
        num_steps=1,
        inner_rate=0.1,
    )
