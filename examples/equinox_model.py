"""A model of your own in Equinox: which of its layers must be adapted to a new scanner?

    python examples/equinox_model.py [--updates 1500]

Every task is a scanner with dirt on its glass: the same pattern lies on all its images of handwritten digits. From
thirty labelled images a network has to learn to read what comes from it. σ-MAML learns where to start and how far each
layer should move. Only the first layer, which sees the dirt, needs to: it alone does for a new scanner.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import shrinx as sx
from shrinx.tasks import digits


class Reader(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        sizes = (64, 32, 32, 32, 10)
        self.layers = [eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]

    def __call__(self, image):
        x = image.ravel()
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def main(num_updates: int) -> None:
    params, apply = sx.from_equinox(Reader(jax.random.key(0)))  # apply(params, images) takes a batch

    def loss_fn(params, batch):
        images, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, images), labels).mean()

    def error(params, batch):
        images, labels = batch
        return jnp.mean(apply(params, images).argmax(-1) != labels)

    solver = sx.ProximalGD(0.1)
    learner = sx.sigma_maml(
        solver, num_steps=20, optimiser=optax.adam(3e-3), variance_optimiser=optax.adam(3e-2), max_task_norm=1.0
    )
    state = learner.init(sx.Prior.create(params, modules=sx.by_layer(params), variance=10.0))
    train = digits.load("train")
    sample = jax.jit(lambda key: digits.sample_scanners(key, train, 8))
    for step in range(num_updates):
        state, info = learner.update(loss_fn, state, sample(jax.random.key(step)))
        if step % 50 == 0:
            print(f"\rupdate {step} of {num_updates}, query loss {info.query_loss:.3f} ", end="", flush=True)

    prior = state.prior
    scanners = digits.sample_scanners(jax.random.key(num_updates), digits.load("test"), 100)  # new dirt, other writers
    subsets = {"nothing": (), "everything": prior.modules.names} | {name: (name,) for name in prior.modules.names}
    errors = sx.ablate(loss_fn, prior, scanners, solver, num_steps=100, subsets=subsets, metric_fn=error)
    print("\n\nlayer            variance   misread digits of 100 new scanners if it alone adapts")
    for name, variance in zip(prior.modules.names, prior.variance, strict=True):
        print(f"{name:16s} {variance:8.2g}   {errors[name].mean():.0%}")
    print(f"Nothing adapts: {errors['nothing'].mean():.0%}. Everything adapts: {errors['everything'].mean():.0%}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500)
    main(parser.parse_args().updates)
