"""Meta-gradients of the same tasks on however many devices there are, written to a file.

python device_gradients.py OUT
"""

import sys

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import shrinx as sx
from shrinx.models import mlp
from shrinx.tasks.sinusoid import sample_tasks

NUM_TASKS = 16


def main(out: str) -> None:
    params = mlp.init(jax.random.key(0), (1, 20, 20, 1))
    prior = sx.Prior.create(params, modules=sx.by_leaf(params), variance=0.1)
    # Plain descent that remembers the last gradient.
    optimiser = optax.chain(optax.trace(0.0), optax.scale(-1e-3))
    solver, common = sx.ProximalGD(0.01), {"num_steps": 3, "optimiser": optimiser}
    linear_solver = sx.CG(max_steps=3, damping=1.0)
    learners = {
        "maml": sx.maml(solver, **common, chunk_size=8),
        "sigma_reptile": sx.sigma_reptile(solver, **common, variance_optimiser=optimiser, linear_solver=linear_solver),
    }
    results = {"devices": np.asarray(jax.device_count())}
    try:
        sx.spread(sample_tasks(jax.random.key(1), NUM_TASKS - 1))
    except ValueError as error:
        results["refusal"] = np.asarray(str(error))
    for name, learner in learners.items():

        @jax.jit
        def update(state: sx.LearnerState, learner: sx.Learner = learner) -> tuple[sx.LearnerState, jax.Array]:
            state, info = learner.update(
                mlp.squared_error, state, sx.spread(sample_tasks(jax.random.key(1), NUM_TASKS))
            )
            return state, info.query_loss

        state, _ = update(learner.init(prior))
        results[name] = np.asarray(ravel_pytree(state.opt_state)[0])
        # A second update starts from what the first one left on the devices.
        results[f"{name} loss"] = np.asarray(update(state)[1])
    learner = learners["sigma_reptile"]
    some = jax.tree.map(lambda leaf: leaf[: NUM_TASKS - 1], sx.spread(sample_tasks(jax.random.key(1), NUM_TASKS)))
    try:
        learner.update(mlp.squared_error, learner.init(prior), some)
    except ValueError as error:
        results["refusal of some"] = np.asarray(str(error))

    @jax.jit
    def go_on(progress: sx.Progress) -> tuple[sx.Prior, sx.LearnerInfo]:
        tasks = sample_tasks(jax.random.key(1), NUM_TASKS)
        tasks = sx.Task(tasks.support, tasks.query, progress=progress)
        return learner.gradient(mlp.squared_error, prior, sx.spread(tasks))

    _, info = go_on(learner.progress(prior, NUM_TASKS))
    results["progress"] = np.asarray(ravel_pytree(go_on(info.progress)[1].progress.displacement)[0])
    np.savez(out, **results)


if __name__ == "__main__":
    main(sys.argv[1])
