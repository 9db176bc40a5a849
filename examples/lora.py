"""LoRA factors as modules: the variances say which layers deserve an adapter.

    python examples/lora.py [--updates 1000]

A Haiku network learns to read clean digits and is then left alone. Each of its layers gets an adapter of rank two,
W + A B, whose two factors are one module. From many scanners with dirt of their own σ-MAML learns where the adapters
start and how far each should move. An adapter whose variance shrinks need not be stored or served.
"""

import argparse

import haiku as hk
import jax
import jax.numpy as jnp
import optax

import shrinx as sx
from shrinx.tasks import digits

RANK = 2


def make_adapters(key, base):
    """At first they change nothing: B is 0."""
    adapters = {}
    for layer, layer_key in zip(base, jax.random.split(key, len(base)), strict=True):
        inputs, outputs = base[layer]["w"].shape
        factor = jax.random.normal(layer_key, (inputs, RANK)) / inputs**0.5
        adapters[layer] = {"a": factor, "b": jnp.zeros((RANK, outputs))}
    return adapters


def with_adapters(base, adapters):
    change = {layer: factors["a"] @ factors["b"] for layer, factors in adapters.items()}
    return {layer: {**leaves, "w": leaves["w"] + change[layer]} for layer, leaves in base.items()}


def main(num_updates: int) -> None:
    train = digits.load("train")
    model = hk.without_apply_rng(hk.transform(lambda images: hk.nets.MLP([32, 32, 32, 10])(hk.Flatten()(images))))
    base, apply = sx.from_haiku(model, model.init(jax.random.key(0), train[0]))

    def base_loss(params, batch):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, batch[0]), batch[1]).mean()

    no_prior = sx.Prior.create(base, variance=jnp.inf)  # plain training is adaptation that nothing holds back
    base = sx.adapt(base_loss, no_prior, train, sx.ProximalAdam(3e-3), num_steps=500).params

    def loss_fn(adapters, batch):
        return base_loss(with_adapters(base, adapters), batch)

    def error(adapters, batch):
        return jnp.mean(apply(with_adapters(base, adapters), batch[0]).argmax(-1) != batch[1])

    solver = sx.ProximalGD(0.03)
    learner = sx.sigma_maml(
        solver, num_steps=20, optimiser=optax.adam(3e-3), variance_optimiser=optax.adam(3e-2), max_task_norm=1.0
    )
    state = learner.init(sx.Prior.create(make_adapters(jax.random.key(1), base), variance=1.0))
    sample = jax.jit(lambda key: digits.sample_scanners(key, train, 8))
    for step in range(num_updates):
        state, info = learner.update(loss_fn, state, sample(jax.random.key(step)))
        if step % 50 == 0:
            print(f"\rupdate {step} of {num_updates}, query loss {info.query_loss:.3f} ", end="", flush=True)

    prior = state.prior
    scanners = digits.sample_scanners(jax.random.key(num_updates), digits.load("test"), 100)  # new dirt, other writers
    subsets = {"nothing": (), "everything": prior.modules.names} | {name: (name,) for name in prior.modules.names}
    errors = sx.ablate(loss_fn, prior, scanners, solver, num_steps=100, subsets=subsets, metric_fn=error)
    print("\n\nadapter of       variance   misread digits of 100 new scanners if it alone adapts")
    for name, variance in zip(prior.modules.names, prior.variance, strict=True):
        print(f"{name:16s} {variance:8.2g}   {errors[name].mean():.0%}")
    print(f"Nothing adapts: {errors['nothing'].mean():.0%}. Everything adapts: {errors['everything'].mean():.0%}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1000)
    main(parser.parse_args().updates)
