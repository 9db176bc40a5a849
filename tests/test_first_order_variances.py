"""Which variances the gradients lead to, where tasks do not differ equally in all directions of a module.

In a direction of curvature h tasks differ by a variance τ², and an estimate from N observations by one of 1 / (N h).
The expected query loss as a function of one σ² has a closed form, and is the least where the gradient's expectation
is zero. All is quadratic, so that four tasks, one for each pair of signs, have the expectation exactly.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shrinx as sx

CURVATURE = np.array([2.0, 0.3, 0.04, 0.006])
NOISE = 0.01
"""1 / N."""
SPREAD = {
    "equal": np.ones(4),
    "steep is shared": np.array([0.01, 0.05, 0.2, 1.0]),
    "flat is shared": np.array([1.0, 0.2, 0.05, 0.01]),
}
LOG_VARIANCES = np.linspace(np.log(1e-2), np.log(1e4), 4001)


def loss_fn(params, target):
    return 0.5 * jnp.sum(jnp.asarray(CURVATURE) * (params["w"] - target) ** 2)


def tasks(spread):
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    query = signs[:, :1] * np.sqrt(spread)
    support = query + signs[:, 1:] * np.sqrt(NOISE / CURVATURE)
    return sx.Task(support=jnp.asarray(support), query=jnp.asarray(query))


def best_log_variance(spread):
    """By the closed form of the expected query loss: bias of shrinkage and variance of the estimate."""
    share = 1 / (1 + np.exp(-LOG_VARIANCES)[:, None] / CURVATURE)
    risk = CURVATURE * ((1 - share) ** 2 * spread + share**2 * NOISE / CURVATURE)
    return LOG_VARIANCES[np.argmin(risk.sum(axis=1))]


def learned_log_variance(spread, adjoint):
    """Where the gradient changes its sign, by bisection."""
    learner = sx.sigma_reptile(
        sx.ProximalGD(0.4),
        num_steps=4000,
        optimiser=optax.sgd(0.0),
        variance_optimiser=optax.sgd(0.0),
        variance_adjoint=adjoint,
    )

    @jax.jit
    def gradient(log_variance):
        prior = sx.Prior.create({"w": jnp.zeros(4)}, variance=jnp.exp(log_variance))
        return learner.gradient(loss_fn, prior, tasks(spread))[0].log_variance[0]

    low, high = LOG_VARIANCES[0], LOG_VARIANCES[-1]
    assert gradient(low) < 0 < gradient(high)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if gradient(middle) < 0 else (low, middle)
    return (low + high) / 2


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("case", SPREAD)
def test_implicit_gradients_lead_to_the_best_variance(case):
    implicit = sx.Implicit(sx.CG(max_steps=10))
    np.testing.assert_allclose(learned_log_variance(SPREAD[case], implicit), best_log_variance(SPREAD[case]), atol=0.01)


@pytest.mark.parametrize(
    ("case", "least", "most"), [("equal", 0.99, 1.01), ("steep is shared", 0, 0.5), ("flat is shared", 2, np.inf)]
)
def test_without_the_hessian_steep_directions_decide(case, least, most):
    ratio = np.exp(learned_log_variance(SPREAD[case], sx.FirstOrder()) - best_log_variance(SPREAD[case]))
    assert least < ratio < most
