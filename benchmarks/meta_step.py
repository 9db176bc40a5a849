"""Time a whole meta-step of augmented Omniglot, preset large, by XLA and by GPU kernels, for one seed and for three.

With learned variances also by GPU kernels and a way back by reverse mode alone.

    PYTHONPATH=. python benchmarks/meta_step.py [--updates 5] [--algorithms reptile imaml] [--seeds 1]

Drawings are noise, so no data set is needed. The steps run in one scan, as in a run, and compilation is not counted.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

import shrinx as sx
from shrinx.experiments.algorithms import make_learner
from shrinx.experiments.aug_omniglot import CLASSES, Config, preset_config
from shrinx.models.conv import ConvNet
from shrinx.tasks.augment import Affine
from shrinx.tasks.images import sample_augmented


def draw(config: Config, key: jax.Array) -> sx.Task:
    """Tasks of noise: support and query have as many images as in the experiment."""

    def part(key, size):
        images = jax.random.randint(key, (config.tasks_per_update, size, 28, 28, 1), 0, 256).astype(jnp.uint8)
        labels = jnp.arange(size, dtype=jnp.int32) % CLASSES
        return images, jnp.broadcast_to(labels, images.shape[:2])

    support, query = jax.random.split(key)
    return sx.Task(part(support, CLASSES * config.num_instances), part(query, CLASSES * 5))


def same(learner: sx.Learner) -> sx.Learner:
    return learner


def by_reverse_mode(learner: sx.Learner) -> sx.Learner:
    """With a way back that is not by mixed modes, as the preset's is."""
    return eqx.tree_at(lambda learner: learner.meta_gradient.adjoint, learner, sx.Unroll(last=5))


def seconds(
    config: Config, network: ConvNet, *, seeds: int, updates: int, change: Callable[[sx.Learner], sx.Learner]
) -> tuple[float, float]:
    """Of a meta-step, and of compilation."""
    sample = partial(sample_augmented, affine=Affine())
    support, query = (partial(sample, size=size) for size in (config.batch_size, config.query_batch_size))
    learner = change(make_learner(config, sample=support, query_sample=query))

    def run(state, key):
        def update(state, key):
            state, info = learner.update(network.cross_entropy, state, draw(config, key), key=key)
            return state, info.query_loss

        return jax.lax.scan(update, state, jax.random.split(key, updates))

    keys = jax.random.split(jax.random.key(0), seeds)
    states = jax.vmap(lambda key: learner.init(sx.Prior.create(network.init(key), variance=config.variance)))(keys)
    program, started = jax.jit(jax.vmap(run)), time.perf_counter()
    jax.block_until_ready(program(states, keys))
    warm = time.perf_counter()
    jax.block_until_ready(program(states, keys))
    return (time.perf_counter() - warm) / updates, warm - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--algorithms", nargs="+", default=["sigma-reptile", "reptile", "imaml"])
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, milliseconds a meta-step")
    for algorithm in options.algorithms:
        config = preset_config(algorithm, "large")
        network = ConvNet((28, 28, 1), CLASSES, num_filters=config.num_filters, dtype=config.dtype)
        variants = {"by XLA": ("off", same), "by kernels": ("auto", same)}
        if algorithm == "sigma-reptile":
            variants["reverse mode alone"] = ("auto", by_reverse_mode)
        for seeds in options.seeds:
            shown = []
            for name, (kernels, change) in variants.items():
                chosen = replace(network, gpu_kernels=kernels)
                step, ready = seconds(config, chosen, seeds=seeds, updates=options.updates, change=change)
                shown.append(f"{name} {1e3 * step:.1f} (ready in {ready:.0f} s)")
            print(f"{algorithm}, seeds {seeds}: {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
