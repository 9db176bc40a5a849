"""shrinx: `sx.adapt` under vmap; the gradient and the product with the Hessian of its network in a scan."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

import shrinx as sx
from shrinx.models.conv import ConvNet
from shrinx.tasks.augment import Affine, warp
from shrinx.tasks.images import sample_augmented

from .job import SIDE, Job
from .libraries import Variant

VERSION = f"{sx.__version__}, jax {jax.__version__}"


Prepared = tuple[list[float], Callable[[], object]]


def device() -> str:
    return jax.devices()[0].device_kind


def peak_mb() -> float | None:
    statistics = jax.devices()[0].memory_stats()
    return statistics and statistics["peak_bytes_in_use"] / 1e6


def prepare(job: Job, case: str, variant: Variant) -> Prepared:
    return CASES[case](job)


def inner_step(job: Job) -> Prepared:
    loss, solver = _loss(job), sx.ProximalGD(job.rate)
    prior = sx.Prior.create(_nested(job.params()), variance=job.variance)
    data = jnp.asarray(job.bytes()), _labels(job.labels())
    sample = functools.partial(sample_augmented, size=job.images, affine=Affine())

    @jax.jit
    def check(prior, batch):
        def of_task(batch):
            adapted = sx.adapt(loss, prior, batch, solver, num_steps=1)
            return loss(prior.mean, batch), loss(adapted.params, batch)

        return [jnp.mean(losses) for losses in jax.vmap(of_task)(batch)]

    @jax.jit
    def adapt(prior, data, key):
        def of_task(data, key):
            return sx.adapt(loss, prior, data, solver, num_steps=job.steps, key=key, sample=sample).params

        return jax.vmap(of_task)(data, jax.random.split(key, job.tasks))

    numbers = [float(value) for value in check(prior, _batch(job))]
    return numbers, lambda: jax.block_until_ready(adapt(prior, data, jax.random.key(0)))


def gradient(job: Job) -> Prepared:
    of_tasks = jax.vmap(jax.value_and_grad(_loss(job)))

    def slope(params, batch):
        losses, slopes = of_tasks(params, batch)
        return jnp.mean(losses), slopes

    return _descend(job, slope)


def hvp(job: Job) -> Prepared:
    loss, vector = _loss(job), _every_task(job, job.vector())

    def product(params, batch, vector):
        return jax.jvp(jax.value_and_grad(lambda params: loss(params, batch)), (params,), (vector,))

    def slope(params, batch):
        (losses, _), (_, image) = jax.vmap(product)(params, batch, vector)
        return jnp.mean(losses), image

    return _descend(job, slope)


CASES = {"inner-step": inner_step, "gradient": gradient, "hvp": hvp}


def _descend(job: Job, slope: Callable) -> Prepared:
    """Steps along `slope(params, batch)`, which comes with the loss."""
    params = _every_task(job, job.params())
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(_batch(job, step) for step in range(job.steps)))

    @jax.jit
    def descend(params, batches):
        def step(params, batch):
            loss, slopes = slope(params, batch)
            moved = jax.tree.map(lambda leaf, slope: leaf - job.small_rate * slope, params, slopes)
            return moved, (loss, _length(slopes))

        return jax.lax.scan(step, params, batches)

    _, found = descend(params, batches)
    return [float(values[0]) for values in found], lambda: jax.block_until_ready(descend(params, batches))


def _loss(job: Job) -> Callable:
    network = ConvNet((SIDE, SIDE, 1), job.classes, num_filters=job.filters, dtype="bfloat16")
    return network.cross_entropy


def _batch(job: Job, step: int = 0) -> tuple[jax.Array, jax.Array]:
    draw, tasks = job.draw(step), jnp.arange(job.tasks)[:, None]
    images, labels = jnp.asarray(job.bytes())[tasks, draw.rows], _labels(job.labels())[tasks, draw.rows]
    return jax.vmap(warp)(images, *map(jnp.asarray, draw[1:])), labels


def _labels(labels) -> jax.Array:
    return jnp.asarray(labels, jnp.int32)


def _nested(params) -> dict:
    layers: dict = {}
    for path, array in params.items():
        layer, name = path.split("/")
        layers.setdefault(layer, {})[name] = jnp.asarray(array)
    return layers


def _every_task(job: Job, params) -> dict:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (job.tasks, *leaf.shape)), _nested(params))


def _length(tree) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))
