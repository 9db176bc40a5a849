"""jaxopt: its solvers as inner loops, unrolled or differentiated implicitly, under vmap and scan."""

import functools
import importlib.metadata
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It says that it is no longer maintained.
    import jaxopt

from ..case import Case
from .jax_networks import arrays, loss_of
from .with_jax import device as device
from .with_jax import repeat

VERSION = importlib.metadata.version("jaxopt")


def maml(case: Case) -> Callable[[], np.ndarray]:
    return _learn(case, _descent(case, unroll=True))


def imaml(case: Case) -> Callable[[], np.ndarray]:
    def prox(params, mean, scaling=1.0):
        factor = 1 / (1 + scaling * case.regularisation)
        return jax.tree.map(lambda p, m: m + (p - m) * factor, params, mean)

    solver = jaxopt.ProximalGradient(
        fun=loss_of(case),
        prox=prox,
        stepsize=case.inner_rate,
        maxiter=case.num_steps,
        tol=0.0,
        acceleration=False,
        implicit_diff=True,
        implicit_diff_solve=functools.partial(jaxopt.linear_solve.solve_cg, maxiter=case.linear_steps, tol=0.0),
    )
    return _learn(case, lambda params, support: solver.run(params, params, support).params)


def reptile(case: Case) -> Callable[[], np.ndarray]:
    loss = loss_of(case)
    solver = jaxopt.OptaxSolver(loss, optax.adam(case.inner_rate), maxiter=case.num_steps, tol=0.0)

    def update(state, batch):
        params, _ = state
        adapted = jax.vmap(lambda support: solver.run(params, support).params)(batch.support)
        value = jnp.mean(jax.vmap(loss)(adapted, batch.query))
        moved = jax.tree.map(lambda p, a: p + case.outer_rate * (jnp.mean(a, axis=0) - p), params, adapted)
        return (moved, None), value

    return repeat(case, update, lambda params: None)


def adapt(case: Case) -> Callable[[], np.ndarray]:
    loss, descend = loss_of(case), _descent(case, unroll=False)
    params, batches = arrays(case)

    @jax.jit
    def score(params, batch):
        adapted = jax.vmap(lambda support: descend(params, support))(batch.support)
        return jnp.mean(jax.vmap(loss)(adapted, batch.query))

    each = [jax.tree.map(lambda x, index=index: x[index], batches) for index in range(len(case.batches))]
    return lambda: np.asarray([score(params, batch) for batch in each])


ALGORITHMS = {"maml": maml, "imaml": imaml, "reptile": reptile, "adapt": adapt}


def _descent(case: Case, *, unroll: bool) -> Callable:
    solver = jaxopt.OptaxSolver(
        loss_of(case),
        optax.sgd(case.inner_rate),
        maxiter=case.num_steps,
        tol=0.0,
        implicit_diff=not unroll,
        unroll=unroll,
    )
    return lambda params, support: solver.run(params, support).params


def _learn(case: Case, descend: Callable) -> Callable[[], np.ndarray]:
    loss, optimiser = loss_of(case), optax.adam(case.outer_rate)

    def meta_loss(params, batch):
        adapted = jax.vmap(lambda support: descend(params, support))(batch.support)
        return jnp.mean(jax.vmap(loss)(adapted, batch.query))

    def update(state, batch):
        params, opt_state = state
        value, gradient = jax.value_and_grad(meta_loss)(params, batch)
        updates, opt_state = optimiser.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value

    return repeat(case, update, optimiser.init)
