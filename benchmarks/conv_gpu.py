"""Time the gradient step of the augmented-Omniglot network on a GPU, by XLA and by the library's kernels.

    PYTHONPATH=. python benchmarks/conv_gpu.py

Twenty tasks with weights of their own take twenty steps in one scan: by plain gradient descent, and in `sx.adapt` with
augmentation and proximal update. The errors are the distances of what a layer's gradients sum up to from the same in
float32, relative to its length: those of the kernels should be no larger than XLA's.
"""

import functools
import time
from dataclasses import replace

import jax
import jax.numpy as jnp

import shrinx as sx
from shrinx.models.conv import ConvNet
from shrinx.tasks.augment import Affine
from shrinx.tasks.images import sample_augmented

TASKS, IMAGES, STEPS, CLASSES = 20, 20, 20, 20
RATE = 1e-4
"""So small that all steps are taken at nearly the same place, and what is summed is comparable."""
KERNELS = ConvNet((28, 28, 1), CLASSES, dtype="bfloat16")
NETWORKS = {"XLA": replace(KERNELS, gpu_kernels="off"), "kernels": KERNELS}


def milliseconds(function, *arguments) -> float:
    """Of a step, the best of ten calls."""
    program = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / STEPS


def labels(*shape: int) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32) % CLASSES, shape)


def descend(network: ConvNet, params, batches):
    gradient = jax.vmap(jax.grad(network.cross_entropy))

    def step(params, batch):
        return jax.tree.map(lambda leaf, slope: leaf - RATE * slope, params, gradient(params, batch)), None

    return jax.lax.scan(step, params, batches)[0]


def adapt(network: ConvNet, prior, data, keys):
    sample = functools.partial(sample_augmented, size=IMAGES, affine=Affine())

    def one(data, key):
        solver = sx.ProximalGD(0.1)
        return sx.adapt(network.cross_entropy, prior, data, solver, num_steps=STEPS, key=key, sample=sample).params

    return jax.vmap(one)(data, keys)


def error(actual, expected, start) -> float:
    """The largest of the layers'."""

    def length(tree):
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))

    def relative(layer):
        difference = jax.tree.map(jnp.subtract, actual[layer], expected[layer])
        return float(length(difference) / length(jax.tree.map(jnp.subtract, expected[layer], start[layer])))

    return max(map(relative, start))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), TASKS)
    params = jax.vmap(KERNELS.init)(keys)
    # Strokes on a flat ground, as drawings are.
    noise = jax.random.uniform(jax.random.key(1), (STEPS, TASKS, IMAGES, 28, 28, 1))
    batches = jnp.where(noise > 0.8, noise, 0.0), labels(STEPS, TASKS, IMAGES)
    with jax.default_matmul_precision("highest"):
        wide = jax.jit(functools.partial(descend, replace(KERNELS, dtype="float32")))(params, batches)
    prior = sx.Prior.create(KERNELS.init(keys[0]))
    drawings = jax.random.randint(jax.random.key(2), (TASKS, 300, 28, 28, 1), 0, 256).astype(jnp.uint8)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, milliseconds a step")
    for name, network in NETWORKS.items():
        gradient = milliseconds(functools.partial(descend, network), params, batches)
        distance = error(jax.jit(functools.partial(descend, network))(params, batches), wide, params)
        whole = milliseconds(functools.partial(adapt, network), prior, (drawings, labels(TASKS, 300)), keys)
        print(f"{name}: gradient {gradient:.3f} (error {distance:.3f}), adapt {whole:.3f}", flush=True)


if __name__ == "__main__":
    main()
