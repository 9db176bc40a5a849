"""Which parts of a small transformer are task-specific? Every attention head is a module, in Flax.

    python examples/transformer_heads.py [--updates 600]

The transformer reads an image of a digit as eight tokens, its rows. Every task is a scanner whose dirt lies on all its
images. `by_axis` cuts the attention of each block into heads. What a new scanner needs is a new table of positions.
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import shrinx as sx
from shrinx.tasks import digits

BLOCKS, HEADS, SIZE, WIDTH = 2, 4, 4, 16


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal(in_axis=0)
        project = [self.param(name, init, (WIDTH, HEADS * SIZE)) for name in ("query", "key", "value")]
        q, k, v = ((x @ weight).reshape(*x.shape[:-1], HEADS, SIZE) for weight in project)
        weights = nn.softmax(jnp.einsum("...qhs,...khs->...hqk", q, k) / SIZE**0.5)
        mixed = jnp.einsum("...hqk,...khs->...qhs", weights, v).reshape(*x.shape[:-1], HEADS * SIZE)
        return mixed @ self.param("output", init, (HEADS * SIZE, WIDTH))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Dense(WIDTH, name="embedding")(images)
        x = x + self.param("positions", nn.initializers.normal(0.1), (images.shape[1], WIDTH))
        for block in range(BLOCKS):
            x = x + Attention(name=f"attention{block}")(nn.LayerNorm(name=f"norm{block}")(x))
            x = x + nn.Dense(WIDTH, name=f"mlp{block}")(nn.gelu(x))
        return nn.Dense(10, name="output")(x.mean(1))


def main(num_updates: int) -> None:
    train = digits.load("train")
    params, apply = sx.from_flax(Transformer(), Transformer().init(jax.random.key(0), train[0]))
    modules = sx.by_axis(params, {"attention./(query|key|value)": 1, "attention./output": 0}, groups=HEADS)

    def loss_fn(params, batch):
        return optax.softmax_cross_entropy_with_integer_labels(apply(params, batch[0]), batch[1]).mean()

    def error(params, batch):
        return jnp.mean(apply(params, batch[0]).argmax(-1) != batch[1])

    solver = sx.ProximalGD(0.1)
    learner = sx.sigma_maml(
        solver, num_steps=8, optimiser=optax.adam(3e-3), variance_optimiser=optax.adam(5e-2), max_task_norm=1.0
    )
    state = learner.init(sx.Prior.create(params, modules=modules, variance=10.0))
    sample = jax.jit(lambda key: digits.sample_scanners(key, train, 4, num_support=20, num_query=20))
    for step in range(num_updates):
        state, info = learner.update(loss_fn, state, sample(jax.random.key(step)))
        if step % 50 == 0:
            print(f"\rupdate {step} of {num_updates}, query loss {info.query_loss:.3f} ", end="", flush=True)

    prior, order = state.prior, sx.select(state.prior, sx.TopK(len(modules))).names
    print("\n\nmodule         variance")
    for name in order:
        print(f"{name:14s} {prior.variance[modules.names.index(name)]:8.2g}")
    scanners = digits.sample_scanners(jax.random.key(num_updates), digits.load("test"), 100)  # new dirt, other writers
    subsets = {"nothing": (), "everything": order, order[0]: order[:1]}
    errors = sx.ablate(loss_fn, prior, scanners, solver, num_steps=50, subsets=subsets, metric_fn=error)
    print("misread digits of new scanners, by what adapts:", {name: f"{e.mean():.0%}" for name, e in errors.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=600)
    main(parser.parse_args().updates)
