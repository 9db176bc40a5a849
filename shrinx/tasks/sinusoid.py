r"""Sinusoid regression (the paper's appendix E.3, after Finn et al. 2017): y = a sin(x - b), ten points a task.

Amplitude a ~ U[0.1, 5], phase b ~ U[0, π], inputs x ~ U[-5, 5].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._task import Task


def sample_tasks(key: PRNGKeyArray, num_tasks: int, *, num_support: int = 10, num_query: int = 10) -> Task:
    """Tasks whose support and query are pairs (x, y) of shape `[tasks, points, 1]`; runs inside `jit`."""
    amplitude_key, phase_key, input_key = jax.random.split(key, 3)
    amplitude = jax.random.uniform(amplitude_key, (num_tasks, 1, 1), minval=0.1, maxval=5.0)
    phase = jax.random.uniform(phase_key, (num_tasks, 1, 1), minval=0.0, maxval=jnp.pi)
    points = (num_tasks, num_support + num_query, 1)
    x = jax.random.uniform(input_key, points, minval=-5.0, maxval=5.0)
    y = sinusoid(x, amplitude, phase)
    return Task(support=(x[:, :num_support], y[:, :num_support]), query=(x[:, num_support:], y[:, num_support:]))


def sinusoid(x: Float[Array, "..."], amplitude: Float[Array, "..."], phase: Float[Array, "..."]) -> Float[Array, "..."]:
    return amplitude * jnp.sin(x - phase)
