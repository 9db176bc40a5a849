"""shrinx: a learner per algorithm, its updates in one scan, as `shrinx run` does it."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shrinx as sx
from shrinx.models import mlp
from shrinx.models.conv import ConvNet

from ..case import Case

VERSION = sx.__version__


def device() -> str:
    return jax.devices()[0].device_kind


def maml(case: Case) -> Callable[[], np.ndarray]:
    learner = sx.maml(
        sx.ProximalGD(case.inner_rate),
        num_steps=case.num_steps,
        optimiser=optax.adam(case.outer_rate),
        checkpoint=False,  # As the others do, every step is kept for the way back.
        chunk_size=_chunk_size(case),
    )
    return _learn(case, learner)


def imaml(case: Case) -> Callable[[], np.ndarray]:
    learner = sx.imaml(
        sx.ProximalGD(case.inner_rate),
        num_steps=case.num_steps,
        optimiser=optax.adam(case.outer_rate),
        linear_solver=sx.CG(max_steps=case.linear_steps),
        regularisation=case.regularisation,
        chunk_size=_chunk_size(case),
    )
    return _learn(case, learner)


def reptile(case: Case) -> Callable[[], np.ndarray]:
    learner = sx.reptile(
        sx.ProximalAdam(case.inner_rate),
        num_steps=case.num_steps,
        optimiser=optax.sgd(case.outer_rate),
        chunk_size=_chunk_size(case),
    )
    return _learn(case, learner)


def adapt(case: Case) -> Callable[[], np.ndarray]:
    loss_fn, params = _network(case)
    prior = sx.Prior.create(params, variance=jnp.inf)
    solver = sx.ProximalGD(case.inner_rate)
    batches = [jax.tree.map(lambda x, index=index: x[index], _tasks(case)) for index in range(len(case.batches))]

    @jax.jit  # `evaluate` is compiled anyway; inside a function of one's own it costs less to call.
    def score(prior: sx.Prior, tasks: sx.Task) -> jax.Array:
        return sx.evaluate(loss_fn, prior, tasks, solver, num_steps=case.num_steps).mean()

    return lambda: np.asarray([score(prior, batch) for batch in batches])


def serve(case: Case) -> Callable[[], np.ndarray]:
    _, params = _network(case)
    prior = sx.Prior.create(params, modules=sx.by_leaf(params))
    folder = tempfile.TemporaryDirectory()
    bank = sx.Bank.create(Path(folder.name) / "bank", prior, ("w0", "b0"))
    names = [f"task{number}" for number in range(case.num_tasks)]
    for name, weight, bias in zip(names, *case.batches[0].support, strict=True):
        bank.put_part(name, [bias, weight])
    bank.pack()

    def predict() -> np.ndarray:
        assert Path(folder.name).exists()  # It is removed with the last reference to it.
        found = [bank.predict(mlp.apply, names, query.x[:, 0]) - query.y[:, 0] for _, query in case.batches]
        return np.asarray([np.mean(np.square(error)) for error in found])

    return predict


ALGORITHMS = {"maml": maml, "imaml": imaml, "reptile": reptile, "adapt": adapt, "serve": serve}


def _learn(case: Case, learner: sx.Learner) -> Callable[[], np.ndarray]:
    loss_fn, params = _network(case)
    state, tasks = learner.init(sx.Prior.create(params)), _tasks(case)

    @jax.jit
    def advance(state: sx.LearnerState, tasks: sx.Task) -> tuple[sx.LearnerState, jax.Array]:
        def update(state: sx.LearnerState, batch: sx.Task) -> tuple[sx.LearnerState, jax.Array]:
            state, info = learner.update(loss_fn, state, batch)
            return state, info.query_loss

        return jax.lax.scan(update, state, tasks)

    def run() -> np.ndarray:
        nonlocal state
        state, losses = advance(state, tasks)
        return np.asarray(losses)

    return run


def _chunk_size(case: Case) -> int | None:
    """On a CPU the convolutions of one task fill the core, and those of several its caches: one task at a time."""
    return 1 if case.network == "conv4" and jax.default_backend() == "cpu" else None


def _network(case: Case) -> tuple[Callable, dict]:
    if case.network == "mlp":
        names = {"weight": "w", "bias": "b"}
        return mlp.squared_error, {names[k.split("/")[1]] + k[0]: jnp.asarray(v) for k, v in case.params.items()}
    params: dict = {}
    for path, array in case.params.items():
        layer, name = path.split("/")
        params.setdefault(layer, {})[name] = jnp.asarray(array)
    return ConvNet((28, 28, 1), len(params["output"]["bias"])).cross_entropy, params


def _tasks(case: Case) -> sx.Task:
    """All batches along a leading axis."""
    support, query = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *case.batches)
    return sx.Task(support=tuple(support), query=tuple(query))
