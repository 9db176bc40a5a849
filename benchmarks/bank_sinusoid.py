"""A thousand sinusoid tasks in a bank: size, error against early stopping, compression, intervals.

    python benchmarks/bank_sinusoid.py [--updates 4000] [--noise 0.1]

A prior is learned first, in about half a minute.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shrinx as sx
from shrinx.bank import calibration
from shrinx.models import mlp
from shrinx.tasks import sinusoid

SOLVER = sx.ProximalGD(0.01)
POINTS = 10


def main(num_updates: int, noise: float) -> None:
    prior = learn(num_updates, noise)
    print("variances:", {name: f"{value:.2g}" for name, value in zip(prior.modules.names, prior.variance, strict=True)})
    chosen = sx.select(prior, sx.TopK(2))
    print(f"task-specific: {', '.join(chosen.names)}, {chosen.fraction:.1%} of the parameters\n")
    with tempfile.TemporaryDirectory() as folder:
        size_on_disk(Path(folder) / "many", prior, chosen)
        stopping(Path(folder), prior, chosen, noise)
        compression(Path(folder), prior, chosen, noise)
        intervals(Path(folder), prior, chosen, noise)


def sample(key: jax.Array, num_tasks: int, noise: float, num_query: int = 10) -> sx.Task:
    task_key, *keys = jax.random.split(key, 3)
    tasks = sinusoid.sample_tasks(task_key, num_tasks, num_support=POINTS, num_query=num_query)

    def seen(key: jax.Array, part: tuple) -> tuple:
        return part[0], part[1] + noise * jax.random.normal(key, part[1].shape)

    return sx.Task(seen(keys[0], tasks.support), seen(keys[1], tasks.query))


def learn(num_updates: int, noise: float) -> sx.Prior:
    params = mlp.init(jax.random.key(0), (1, 40, 40, 1), first_scale=0.3)
    learner = sx.sigma_maml(
        SOLVER, num_steps=30, optimiser=optax.adam(5e-3), variance_optimiser=optax.adam(3e-2), max_task_norm=0.5
    )

    @jax.jit
    def train(state: sx.LearnerState, keys: jax.Array) -> sx.LearnerState:
        def update(state: sx.LearnerState, key: jax.Array) -> tuple:
            return learner.update(mlp.squared_error, state, sample(key, 5, noise))[0], None

        return jax.lax.scan(update, state, keys)[0]

    prior = sx.Prior.create(params, modules=sx.by_leaf(params), variance=6.0)
    return train(learner.init(prior), jax.random.split(jax.random.key(1), num_updates)).prior


def size_on_disk(path: Path, prior: sx.Prior, chosen: sx.Selection) -> None:
    bank = sx.Bank.create(path, prior, chosen)
    names = [f"task{number:04d}" for number in range(1000)]
    sx.adapt_task(bank, mlp.squared_error, names, sample(jax.random.key(2), 1000, 0.0).support, SOLVER, max_steps=100)
    selected = sum(prior.modules.sizes[index] for index in prior.modules.indices(chosen.names))
    ideal = 4 * (sum(prior.modules.sizes) + 1000 * selected)
    print(f"1,000 tasks: {ideal:,} bytes of parameters")
    for label, act in {"one file per task": lambda: None, "packed": bank.pack}.items():
        act()
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"  {label:34s} {size:9,d} bytes, {size / ideal - 1:+.1%}")


def stopping(folder: Path, prior: sx.Prior, chosen: sx.Selection, noise: float) -> None:
    """Adapt until convergence; the best moment to stop, known only with hindsight; and without a prior."""
    tasks = sample(jax.random.key(3), 200, noise, 100)
    names = [f"task{number}" for number in range(200)]
    bank = sx.Bank.create(folder / "stopping", prior, chosen)
    report = sx.adapt_task(bank, mlp.squared_error, names, tasks.support, SOLVER)
    error = np.mean((bank.predict(mlp.apply, names, tasks.query[0], points=True) - tasks.query[1]) ** 2)
    options = {"num_steps": 10_000, "chunk_size": 50}
    with_prior = sx.adaptation_curve(mlp.squared_error, prior, tasks, SOLVER, trainable=chosen, **options).mean(0)
    free = sx.Prior.create(prior.mean, modules=prior.modules, variance=jnp.inf)
    without = sx.adaptation_curve(mlp.squared_error, free, tasks, SOLVER, **options).mean(0)
    print(f"\nMean squared error on new points of 200 new tasks, noise {noise}")
    median = int(np.median(report.num_steps))
    print(f"  until convergence (median {median} steps)   {error:.4f}, {report.converged.mean():.0%} converged")
    print(f"  best common stop, in hindsight           {with_prior.min():.4f} after {int(with_prior.argmin())}")
    print(f"  10,000 steps                             {with_prior[-1]:.4f}")
    print(f"  all modules without a prior, 10,000      {without[-1]:.4f}")


def compression(folder: Path, prior: sx.Prior, chosen: sx.Selection, noise: float) -> None:
    tasks = sample(jax.random.key(3), 200, noise, 100)
    names = [f"task{number}" for number in range(200)]
    exact = sx.Bank.open(folder / "stopping")
    reference = exact.predict(mlp.apply, names, tasks.query[0], points=True)
    print("\nCompression: bytes a task, relative error of the differences, of the predictions")
    for kind in (None, "float16", "bfloat16", "int8"):
        bank = sx.Bank.create(folder / f"as-{kind}", prior, chosen, compression=kind)
        for name in names:
            bank.put(name, exact.params(name))
        lost = np.median([bank.info(name).error for name in names])
        outputs = bank.predict(mlp.apply, names, tasks.query[0], points=True)
        error = np.sqrt(np.mean((outputs - reference) ** 2) / np.mean(reference**2))
        print(f"  {kind or 'exact':10s} {bank.info(names[0]).size:4d} {lost:8.1e} {error:8.1e}")


def intervals(folder: Path, prior: sx.Prior, chosen: sx.Selection, noise: float) -> None:
    """Coverage of 95 % intervals on 200 held-out tasks, with a factor found on 200 others."""
    print("\nShare of new points within their 95 % interval, and the intervals' mean half width")
    names = [f"task{number}" for number in range(200)]
    for structure in ("diagonal", "full"):

        def look(label: str, seed: int, scale: float, structure=structure) -> float:
            bank = sx.Bank.create(folder / f"{structure} {label}", prior, chosen, posterior=structure)
            tasks = sample(jax.random.key(seed), 200, noise, 50)
            sx.adapt_task(bank, mlp.squared_error, names, tasks.support, SOLVER, loss_scale=scale, chunk_size=50)
            mean, deviation = bank.predict(mlp.apply, names, tasks.query[0], points=True, uncertainty=True)
            errors, spread = np.asarray(tasks.query[1]) - mean, 1.96 * np.sqrt(deviation**2 + noise**2)
            print(f"  {structure:8s} {label:12s} {np.mean(np.abs(errors) < spread):6.1%}  ± {spread.mean():.2f}")
            return calibration(errors, deviation, noise)

        scale = POINTS / (2 * noise**2)
        factor = look("as learned", 4, scale)
        look(f"x {factor:.0f}", 5, scale * factor)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4000, help="meta-updates")
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the observations' noise")
    arguments = parser.parse_args()
    main(arguments.updates, arguments.noise)
