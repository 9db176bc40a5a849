"""A bank of 1,000 tasks, adapted in one call and served from one copy of the model.

    python examples/bank.py [--updates 4000]

Every task is a sinusoid, known from ten points. σ-MAML learns which of the network's layers are task-specific; only
these are adapted, stored and shipped. One process then answers questions about all tasks, 256 at a time, in one
compiled call.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import optax

import shrinx as sx
from shrinx.models import mlp
from shrinx.tasks import sinusoid

TASKS, ROWS, CALLS = 1000, 256, 200


def learn_prior(num_updates: int) -> sx.Prior:
    params = mlp.init(jax.random.key(0), (1, 40, 40, 1), first_scale=0.3)
    learner = sx.sigma_maml(
        sx.ProximalGD(0.01),
        num_steps=30,
        optimiser=optax.adam(5e-3),
        variance_optimiser=optax.adam(3e-2),
        max_task_norm=0.5,
    )

    def update(state, key):
        return learner.update(mlp.squared_error, state, sinusoid.sample_tasks(key, 5))[0], None

    prior = sx.Prior.create(params, modules=sx.by_leaf(params), variance=6.0)
    keys = jax.random.split(jax.random.key(1), num_updates)
    return jax.jit(lambda state: jax.lax.scan(update, state, keys)[0])(learner.init(prior)).prior


def main(num_updates: int, folder: Path) -> None:
    prior = learn_prior(num_updates)
    chosen = sx.select(prior, sx.TopK(2))
    bank = sx.Bank.create(folder, prior, chosen)
    print(f"{' and '.join(chosen.names)} are task-specific: {chosen.fraction:.1%} of the parameters.")

    names = [f"customer {number}" for number in range(TASKS)]
    tasks = sinusoid.sample_tasks(jax.random.key(2), TASKS, num_query=100)
    started = time.perf_counter()
    report = sx.adapt_task(bank, mlp.squared_error, names, tasks.support, sx.ProximalGD(0.01), max_steps=2000)
    seconds = time.perf_counter() - started
    print(f"{TASKS:,} tasks adapted and stored in {seconds:.1f} s, {report.converged.mean():.0%} have converged.")
    bank.pack()  # one file for all of them
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    needed = 4 * (sum(prior.modules.sizes) + TASKS * chosen.fraction * sum(prior.modules.sizes))
    print(f"The bank takes {size / 1000:,.0f} kB on disk, its parameters alone {needed / 1000:,.0f} kB.")

    bank = sx.Bank.open(folder)  # as any other process would
    x, y = (np.asarray(array) for array in tasks.query)
    generator = np.random.default_rng(0)
    errors, seconds = [], []
    for _ in range(CALLS):
        asked, point = generator.choice(TASKS, ROWS, replace=False), generator.integers(100, size=ROWS)
        started = time.perf_counter()
        answers = bank.predict(mlp.apply, [names[task] for task in asked], x[asked, point])
        seconds.append(time.perf_counter() - started)
        errors.append(np.mean((answers - y[asked, point]) ** 2))
    print(f"{ROWS} questions about {ROWS} tasks take {1000 * np.median(seconds):.2f} ms; error {np.mean(errors):.3f}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.updates, Path(folder))
