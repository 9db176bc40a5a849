"""Ways to convolve with a kernel per task, by shape: CPU time of the gradient of the 4-convolution network.

python -m benchmarks.convolutions [--shapes 4x5 5x20] [--repeats 5]

A shape is tasks x images. Ways take turns on one core; the table has medians in milliseconds of CPU time per task.
"""

import argparse
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp

from shrinx.models import conv
from shrinx.models._convolve import convolve, convolve_patches

from .turns import milliseconds
from .worker import one_core


def library(inputs: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """XLA's own convolution, a grouped one under vmap over kernels."""
    return jax.lax.conv_general_dilated(
        inputs, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def rows(inputs: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """Patches of one row: a third of the memory, and three matrix products that are added up."""
    assert stride == 1
    _, height, width, _ = inputs.shape
    padded = jnp.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
    wide = jnp.concatenate([padded[:, :, column : column + width] for column in range(3)], axis=-1)
    return _add_up([wide[:, row : row + height] for row in range(3)], list(kernel.reshape(3, -1, kernel.shape[-1])))


def pixels(inputs: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """No patches: a matrix product for each of the nine pixels of a kernel."""
    assert stride == 1
    _, height, width, _ = inputs.shape
    padded = jnp.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [padded[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]
    return _add_up(parts, list(kernel.reshape(9, *kernel.shape[2:])))


def _add_up(parts: list[jax.Array], kernels: list[jax.Array]) -> jax.Array:
    products = [part.reshape(-1, part.shape[-1]) @ kernel for part, kernel in zip(parts, kernels, strict=True)]
    return sum(products[1:], products[0]).reshape(*parts[0].shape[:-1], -1)


def over_tasks(function: Callable) -> Callable:
    return jax.vmap(function)


def one_by_one(function: Callable) -> Callable:
    return lambda *tasks: jax.lax.map(lambda task: function(*task), tasks)


WAYS = {
    "shrinx, vmap": (convolve, over_tasks),
    "shrinx, loop": (convolve, one_by_one),
    "patches, vmap": (convolve_patches, over_tasks),
    "patches, loop": (convolve_patches, one_by_one),
    "rows, vmap": (rows, over_tasks),
    "rows, loop": (rows, one_by_one),
    "pixels, vmap": (pixels, over_tasks),
    "library, vmap": (library, over_tasks),
    "library, loop": (library, one_by_one),
}


def measure(num_tasks: int, num_images: int, ways: list[str], repeats: int) -> dict[str, float]:
    """Way -> milliseconds of CPU time per task."""
    network = conv.ConvNet((28, 28, 1), num_classes=5)
    params = jax.vmap(network.init)(jax.random.split(jax.random.key(0), num_tasks))
    images = jax.random.uniform(jax.random.key(1), (num_tasks, num_images, 28, 28, 1))
    batch = images, jnp.tile(jnp.arange(num_images) % 5, (num_tasks, 1))
    programs = {}
    for way in ways:
        convolve, strategy = WAYS[way]
        with mock.patch.object(conv, "convolve", convolve):
            gradient = jax.jit(strategy(jax.grad(network.cross_entropy)))
            programs[way] = gradient.lower(params, batch).compile()
    found = milliseconds(programs, params, batch, repeats=repeats)
    return {way: value / num_tasks for way, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1x5", "4x5", "5x20", "20x20"], metavar="TASKSxIMAGES")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with one_core():
        jax.devices()
    print(f"| tasks x images | {' | '.join(options.ways)} |\n|---|{'---:|' * len(options.ways)}")
    for shape in options.shapes:
        found = measure(*map(int, shape.split("x")), options.ways, options.repeats)
        print(f"| {shape} | {' | '.join(f'{value:.1f}' for value in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
