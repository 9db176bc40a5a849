"""What the Omniglot cases share: the 4-convolution network and images of its size.

Speed does not depend on what the images show, so they are noise; labels are 0, 1, 2, … in turn.
"""

import numpy as np

from ..case import Batch, Examples, Params

FILTERS = 64


def make_batches(count: int, num_tasks: int, num_classes: int) -> tuple[Batch, ...]:
    """One image of every class to adapt to and one to be judged by."""
    generator = np.random.default_rng(0)
    return tuple(
        Batch(_examples(generator, num_tasks, num_classes), _examples(generator, num_tasks, num_classes))
        for _ in range(count)
    )


def make_params(num_classes: int, num_filters: int = FILTERS) -> Params:
    """Kernels of variance 1 / inputs, scales one, offsets and output bias zero."""
    generator = np.random.default_rng(1)
    params: Params = {}
    for block in range(4):
        inputs = 1 if block == 0 else num_filters
        kernel = generator.normal(0.0, (9 * inputs) ** -0.5, (3, 3, inputs, num_filters))
        params[f"conv{block}/kernel"] = kernel.astype(np.float32)
        params[f"norm{block}/scale"] = np.ones(num_filters, np.float32)
        params[f"norm{block}/offset"] = np.zeros(num_filters, np.float32)
    kernel = generator.normal(
        0.0, num_filters**-0.5, (num_filters, num_classes)
    )  # 28 pixels halved four times leave one.
    params["output/kernel"] = kernel.astype(np.float32)
    params["output/bias"] = np.zeros(num_classes, np.float32)
    return params


def _examples(generator: np.random.Generator, num_tasks: int, num_classes: int) -> Examples:
    images = generator.uniform(0.0, 1.0, (num_tasks, num_classes, 28, 28, 1)).astype(np.float32)
    return Examples(images, np.tile(np.arange(num_classes), (num_tasks, 1)))
