"""JAX and optax without any meta-learning library: scan over steps, vmap over tasks, scan over meta-steps."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..case import Case
from .jax_networks import arrays, loss_of

VERSION = jax.__version__


def device() -> str:
    return jax.devices()[0].device_kind


def maml(case: Case) -> Callable[[], np.ndarray]:
    return learn_through(case, partial(descend, case))


def imaml(case: Case) -> Callable[[], np.ndarray]:
    loss, optimiser = loss_of(case), optax.adam(case.outer_rate)

    def of_task(params, support, query):
        adapted = descend(case, params, support)
        value, gradient = jax.value_and_grad(loss)(adapted, query)
        _, hessian = jax.linearize(lambda p: jax.grad(loss)(p, support), adapted)

        def operator(vector):
            return jax.tree.map(lambda v, h: v + h / case.regularisation, vector, hessian(vector))

        solution, _ = jax.scipy.sparse.linalg.cg(operator, gradient, tol=0.0, maxiter=case.linear_steps)
        return value, solution

    def update(state, batch):
        params, opt_state = state
        values, gradients = jax.vmap(of_task, in_axes=(None, 0, 0))(params, *batch)
        gradient = jax.tree.map(lambda g: jnp.mean(g, axis=0), gradients)
        updates, opt_state = optimiser.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), jnp.mean(values)

    return repeat(case, update, optimiser.init)


def reptile(case: Case) -> Callable[[], np.ndarray]:
    loss, inner = loss_of(case), optax.adam(case.inner_rate)

    def of_task(params, support):
        def step(carry, _):
            params, opt_state = carry
            updates, opt_state = inner.update(jax.grad(loss)(params, support), opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        (adapted, _), _ = jax.lax.scan(step, (params, inner.init(params)), length=case.num_steps)
        return adapted

    return move_towards(case, of_task)


def adapt(case: Case) -> Callable[[], np.ndarray]:
    return score_after(case, partial(descend, case))


def serve(case: Case) -> Callable[[], np.ndarray]:
    def with_own(params, own):
        weight, bias = own
        return {**params, "0/weight": weight, "0/bias": bias}

    return score_after(case, with_own)


ALGORITHMS = {"maml": maml, "imaml": imaml, "reptile": reptile, "adapt": adapt, "serve": serve}


def descend(case: Case, params, support):
    """Gradient descent, each step followed by the proximal step of λ/2 |θ - φ|²."""
    loss = loss_of(case)
    shrinkage = 1 / (1 + case.inner_rate * case.regularisation)

    def step(theta, _):
        gradient = jax.grad(loss)(theta, support)
        moved = jax.tree.map(lambda p, g: p - case.inner_rate * g, theta, gradient)
        return jax.tree.map(lambda m, p: p + (m - p) * shrinkage, moved, params), None

    return jax.lax.scan(step, params, length=case.num_steps)[0]


def learn_through(case: Case, adapt: Callable) -> Callable[[], np.ndarray]:
    """Adam on the query loss of `adapt(params, support)`, differentiated as that is."""
    optimiser = optax.adam(case.outer_rate)

    def update(state, batch):
        params, opt_state = state
        value, gradient = jax.value_and_grad(query_loss(case, adapt))(params, batch)
        updates, opt_state = optimiser.update(gradient, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value

    return repeat(case, update, optimiser.init)


def move_towards(case: Case, adapt: Callable) -> Callable[[], np.ndarray]:
    """Reptile: a step from the parameters to the mean of the adapted ones."""
    loss = loss_of(case)

    def update(state, batch):
        params, _ = state
        adapted = jax.vmap(adapt, in_axes=(None, 0))(params, batch.support)
        value = jnp.mean(jax.vmap(loss)(adapted, batch.query))
        moved = jax.tree.map(lambda p, a: p + case.outer_rate * (jnp.mean(a, axis=0) - p), params, adapted)
        return (moved, None), value

    return repeat(case, update, lambda params: None)


def score_after(case: Case, adapt: Callable) -> Callable[[], np.ndarray]:
    """The query loss, batch by batch, a call each."""
    params, batches = arrays(case)
    score = jax.jit(query_loss(case, adapt))
    each = [jax.tree.map(lambda x, index=index: x[index], batches) for index in range(len(case.batches))]
    return lambda: np.asarray([score(params, batch) for batch in each])


def query_loss(case: Case, adapt: Callable) -> Callable:
    loss = loss_of(case)

    def mean_loss(params, batch):
        adapted = jax.vmap(adapt, in_axes=(None, 0))(params, batch.support)
        return jnp.mean(jax.vmap(loss)(adapted, batch.query))

    return mean_loss


def repeat(case: Case, update: Callable, init: Callable) -> Callable[[], np.ndarray]:
    params, batches = arrays(case)
    state = (params, init(params))
    advance = jax.jit(lambda state, batches: jax.lax.scan(update, state, batches))

    def run() -> np.ndarray:
        nonlocal state
        state, losses = advance(state, batches)
        return np.asarray(losses)

    return run
