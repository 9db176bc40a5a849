r"""The univariate normal model of the paper's appendix A, where everything has a closed form.

$$ \theta_t \sim \mathcal{N}(\phi, \sigma^2), \qquad x_{t,n}, y_{t,k} \sim \mathcal{N}(\theta_t, 1) $$

with N support points x and K query points y per task. All closed forms are functions of the task means x̄_t and ȳ_t;
losses and gradients are means over tasks (the paper sums). "Predictive" is the objective of σ-MAML and σ-iMAML, "joint"
is the objective that must not be used for σ² (Lemma 1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .._task import Task

TaskMeans = Float[Array, " tasks"]


def sample_tasks(
    key: PRNGKeyArray, num_tasks: int, *, mean: float, variance: float, num_support: int, num_query: int
) -> Task:
    """Tasks with support `[tasks, num_support]` and query `[tasks, num_query]`."""
    task_key, support_key, query_key = jax.random.split(key, 3)
    theta = mean + jnp.sqrt(variance) * jax.random.normal(task_key, (num_tasks, 1))
    return Task(
        support=theta + jax.random.normal(support_key, (num_tasks, num_support)),
        query=theta + jax.random.normal(query_key, (num_tasks, num_query)),
    )


def loss_fn(theta: Float[Array, ""], observations: Float[Array, " points"]) -> Float[Array, ""]:
    """Negative log-likelihood of a task's observations, a sum, up to a constant."""
    return 0.5 * jnp.sum(jnp.square(observations - theta))


def map_estimate(support_means: TaskMeans, num_support: int, mean: ArrayLike, variance: ArrayLike) -> TaskMeans:
    """θ̂_t = (N x̄_t + φ/σ²) / (N + 1/σ²)."""
    return (num_support * support_means + mean / variance) / (num_support + 1 / variance)


class PredictiveGradient(NamedTuple):
    mean: Float[Array, ""]
    log_variance: Float[Array, ""]


def predictive_gradient(
    support_means: TaskMeans,
    query_means: TaskMeans,
    num_support: int,
    num_query: int,
    mean: ArrayLike,
    variance: ArrayLike,
) -> PredictiveGradient:
    """The gradient of the mean query loss at the MAP estimates, for φ and log σ²."""
    theta = map_estimate(support_means, num_support, mean, variance)
    toward_mean = num_query * (theta - query_means) / (1 + num_support * variance)
    return PredictiveGradient(jnp.mean(toward_mean), jnp.mean(toward_mean * (theta - mean)))


def predictive_variance_root(
    support_means: TaskMeans, query_means: TaskMeans, num_support: int, mean: ArrayLike
) -> Float[Array, ""]:
    """σ̂²(φ): where the predictive gradient of σ² is zero, for a given mean. Also σ-Reptile's, with φ = x̄."""
    above = jnp.mean((support_means - mean) * (query_means - mean))
    below = num_support * jnp.mean((support_means - query_means) * (support_means - mean))
    return above / below


def predictive_mean_root(
    support_means: TaskMeans, query_means: TaskMeans, num_support: int, variance: ArrayLike
) -> Float[Array, ""]:
    """φ̂(σ²): where the predictive gradient of φ is zero, for a given variance."""
    x, y = jnp.mean(support_means), jnp.mean(query_means)
    return y + num_support * variance * (y - x)


class Estimate(NamedTuple):
    mean: Float[Array, ""]
    variance: Float[Array, ""]


def predictive_estimate(support_means: TaskMeans, query_means: TaskMeans, num_support: int) -> Estimate:
    """The joint root (φ̂, σ̂²) of the predictive gradient: what σ-MAML and σ-iMAML converge to."""
    x, y = jnp.mean(support_means), jnp.mean(query_means)
    xy = jnp.mean(support_means * query_means)
    difference = jnp.mean(support_means * (support_means - query_means))
    mean = (difference * y + xy * (y - x)) / (x * (y - x) + difference)
    return Estimate(mean, predictive_variance_root(support_means, query_means, num_support, mean))


def reptile_estimate(support_means: TaskMeans, query_means: TaskMeans, num_support: int) -> Estimate:
    """What σ-Reptile converges to: φ̂ = x̄ and the predictive root of σ² there."""
    mean = jnp.mean(support_means)
    return Estimate(mean, predictive_variance_root(support_means, query_means, num_support, mean))


def joint_loss(support_spread: ArrayLike, num_support: int, variance: ArrayLike) -> Array:
    """-log p(θ̂, x | φ̂, σ²) per task up to a constant, at the best θ and φ for σ²; `support_spread` is S = var(x̄_t).

    It falls without bound as σ² -> 0.
    """
    variance = jnp.asarray(variance)
    # At the optimum (θ̂-φ̂)²/σ² and the loss of the support points add up to (x̄_t-x̄)² / (σ² + 1/N).
    return 0.5 * (jnp.log(variance) + support_spread / (variance + 1 / num_support))


def joint_gradient(support_spread: ArrayLike, num_support: int, variance: ArrayLike) -> Array:
    """The derivative of `joint_loss` with respect to σ².

    Where it has no root it is positive everywhere (the paper's proof prints the other sign), so descent goes to 0.
    """
    variance = jnp.asarray(variance)
    return 0.5 * (1 / variance - support_spread / (variance + 1 / num_support) ** 2)


class JointRoots(NamedTuple):
    """Stationary points of `joint_loss`: a local maximum on the left, a local minimum on the right."""

    left: float
    right: float


def joint_roots(support_spread: float, num_support: int) -> JointRoots | None:
    """The stationary points, or `None` if S < 4/N: then descent ends at σ² = 0 from everywhere."""
    discriminant = support_spread * (support_spread - 4 / num_support)
    if discriminant < 0:
        return None
    middle, half = support_spread - 2 / num_support, float(np.sqrt(discriminant))
    return JointRoots(0.5 * (middle - half), 0.5 * (middle + half))
