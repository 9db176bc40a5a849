"""jaxopt: its solvers as inner loops, unrolled or differentiated implicitly, under vmap and scan."""

import functools
import importlib.metadata
import warnings
from collections.abc import Callable

import jax
import numpy as np
import optax

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # It says that it is no longer maintained.
    import jaxopt

from ..case import Case
from .jax_networks import loss_of
from .with_jax import device as device
from .with_jax import learn_through, move_towards, score_after

VERSION = importlib.metadata.version("jaxopt")


def maml(case: Case) -> Callable[[], np.ndarray]:
    return learn_through(case, _descent(case, unroll=True))


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
    return learn_through(case, lambda params, support: solver.run(params, params, support).params)


def reptile(case: Case) -> Callable[[], np.ndarray]:
    solver = jaxopt.OptaxSolver(loss_of(case), optax.adam(case.inner_rate), maxiter=case.num_steps, tol=0.0)
    return move_towards(case, lambda params, support: solver.run(params, support).params)


def adapt(case: Case) -> Callable[[], np.ndarray]:
    return score_after(case, _descent(case, unroll=False))


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
