r"""The two synthetic problems of the paper's appendix C: normal tasks seen through a linear map or a swirl.

$$ \theta_{t,m} \sim \mathcal{N}(\phi_m, \sigma_m^2), \qquad x_{t,n,d} \sim \mathcal{N}(\mu_d(\theta_t), \xi_d^2) $$

The map μ and the noise ξ are known; φ and σ are what is to be learned.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._task import Task

Theta: TypeAlias = dict[str, Float[Array, ""]]
"""One scalar per parameter, `theta0`, `theta1`, …: every parameter is a module of its own."""

ANGULAR_VELOCITY = math.pi / 5


@dataclass(frozen=True)
class Model:
    """A hierarchical model with known map and noise."""

    centre: float
    """φ, the same for all parameters."""
    spread: tuple[float, ...]
    """σ of each parameter."""
    noise: tuple[float, ...]
    """ξ of each dimension of an observation."""
    transform: Callable[[Float[Array, " parameters"]], Float[Array, " dimensions"]]
    """μ."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"theta{index}" for index in range(len(self.spread)))

    def vector(self, theta: Theta) -> Float[Array, " parameters"]:
        return jnp.stack([theta[name] for name in self.names])

    def sample_tasks(self, key: PRNGKeyArray, num_tasks: int, *, num_support: int, num_query: int) -> Task:
        """Tasks whose support and query hold observations `x` and, for judging only, the task's true `theta`."""
        theta_key, noise_key = jax.random.split(key)
        spread, noise = jnp.asarray(self.spread), jnp.asarray(self.noise)
        theta = self.centre + spread[None] * jax.random.normal(theta_key, (num_tasks, len(self.spread)))
        errors = jax.random.normal(noise_key, (num_tasks, num_support + num_query, len(self.noise)))
        x = jax.vmap(self.transform)(theta)[:, None] + noise[None, None] * errors
        return Task(
            support={"x": x[:, :num_support], "theta": theta},
            query={"x": x[:, num_support:], "theta": theta},
        )

    def loss(self, theta: Theta, batch: dict[str, Array]) -> Float[Array, ""]:
        """Negative log-likelihood of all observations, a sum, up to a constant: the learned variances are then σ²."""
        residual = (batch["x"] - self.transform(self.vector(theta))[None]) / jnp.asarray(self.noise)[None]
        return 0.5 * jnp.sum(jnp.square(residual))

    def loss_per_observation(self, theta: Theta, batch: dict[str, Array]) -> Float[Array, ""]:
        return self.loss(theta, batch) / batch["x"].shape[0]


def linear() -> Model:
    """Experiment 1: eight parameters, seen one by one and, with little noise, in their sum."""
    return Model(
        centre=1.0,
        spread=(8.0,) * 4 + (2.0,) * 4,
        noise=(8.0,) * 4 + (5.0,) * 4 + (1.0,),
        transform=lambda theta: jnp.concatenate([theta, jnp.sum(theta, keepdims=True) / math.sqrt(theta.size)]),
    )


def swirl() -> Model:
    """Experiment 2: ten parameters, each pair rotated by an angle proportional to its distance from the origin."""
    return Model(centre=2.0, spread=(4.0,) * 8 + (8.0,) * 2, noise=(10.0,) * 10, transform=rotate_pairs)


def rotate_pairs(theta: Float[Array, " parameters"], velocity: float = ANGULAR_VELOCITY) -> Float[Array, " parameters"]:
    """Rotate consecutive pairs by `velocity` times their norm. `-velocity` undoes it: a rotation keeps the norm."""
    x, y = theta[0::2], theta[1::2]
    square = jnp.square(x) + jnp.square(y)
    # The root has no derivative at the origin, the rotated pair has one: zero.
    angle = velocity * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1).reshape(-1)
