"""Which layers of a network are task-specific? Learn it from 40,000 sinusoids, five at a time.

    python examples/sinusoid.py [--updates 8000]

A two-layer network is to fit y = a sin(x - b) from ten points. Every weight and bias vector is a module with a variance
of its own, learned by σ-Reptile: most shrink, those of the first layer stay.
"""

import argparse
import time

import jax
import optax

import shrinx as sx
from shrinx.models import mlp
from shrinx.tasks import sinusoid

CHUNK = 1000


def main(num_updates: int) -> None:
    params = mlp.init(jax.random.key(0), (1, 40, 40, 1), first_scale=0.3)
    solver = sx.ProximalGD(0.01)
    learner = sx.sigma_reptile(
        solver,
        num_steps=100,
        optimiser=optax.adam(3e-3),
        variance_optimiser=optax.adam(1e-2),
        linear_solver=sx.CG(max_steps=7, damping=6e-3),
    )
    state = learner.init(sx.Prior.create(params, modules=sx.by_leaf(params), variance=100.0))

    @jax.jit
    def train(state, key):
        def update(state, key):
            return learner.update(mlp.squared_error, state, sinusoid.sample_tasks(key, 5))

        state, info = jax.lax.scan(update, state, jax.random.split(key, CHUNK))
        return state, info.query_loss.mean()

    started = time.time()
    for done in range(CHUNK, num_updates + 1, CHUNK):
        state, loss = train(state, jax.random.fold_in(jax.random.key(1), done))
        loss.block_until_ready()
        left = (time.time() - started) * (num_updates - done) / done
        print(f"\r{done:6d} of {num_updates} updates, query loss {loss:.3f}, {left:.0f} s left ", end="", flush=True)

    held_out = sinusoid.sample_tasks(jax.random.key(2), 100, num_query=50)
    chosen = sx.select(state.prior, sx.TopK(2))
    subsets = {name: (name,) for name in state.prior.modules.names}
    subsets |= {"all": state.prior.modules.names, "chosen": chosen.names}
    error = sx.ablate(mlp.squared_error, state.prior, held_out, solver, num_steps=100, subsets=subsets)

    print("\n\nmodule  variance   error on new tasks if it alone adapts")
    for name, variance in zip(state.prior.modules.names, state.prior.variance, strict=True):
        print(
            f"{name:6s}  {variance:8.2g}   {error[name].mean():.3f}{'   task-specific' if name in chosen.names else ''}"
        )
    print(f"\nAll modules: {error['all'].mean():.3f}. Only {' and '.join(chosen.names)}, {chosen.fraction:.1%} of the")
    print(f"parameters: {error['chosen'].mean():.3f}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8000, help=f"meta-updates, a multiple of {CHUNK}")
    arguments = parser.parse_args()
    if arguments.updates < CHUNK or arguments.updates % CHUNK:
        parser.error(f"--updates must be a positive multiple of {CHUNK}, got {arguments.updates}")
    main(arguments.updates)
