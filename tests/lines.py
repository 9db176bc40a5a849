"""Tasks with a model that is linear in what adapts, so that posteriors have a closed form; shared by the tests."""

import jax
import jax.numpy as jnp
import numpy as np

import shrinx as sx


def features(x):
    return jnp.stack([jnp.ones_like(x), x, jnp.sin(2 * x), jnp.cos(2 * x)], axis=-1)


def line(params, x):
    """Linear in the task-specific weights, so that everything has a closed form."""
    return features(x) @ params["weights"] + params["offset"]


NOISE = 0.3


def line_loss(params, batch):
    x, y = batch
    return 0.5 * jnp.sum(jnp.square((y - line(params, x)) / NOISE))


def line_prior(variance=1.5):
    params = {"weights": jnp.array([0.5, -1.0, 0.0, 2.0]), "offset": jnp.zeros(())}
    return sx.Prior.create(params, variance={"weights": variance, "offset": 1e-6})


def line_tasks(key, num_tasks, *, num_support=8, num_query=20):
    """Tasks drawn from the prior itself: x and y of support and query."""
    keys = jax.random.split(key, 3)
    prior = line_prior()
    spread = jnp.sqrt(jnp.asarray(1.5)) * jax.random.normal(keys[0], (num_tasks, 4))
    weights = prior.mean["weights"][None] + spread
    x = jax.random.uniform(keys[1], (num_tasks, num_support + num_query), minval=-3.0, maxval=3.0)
    y = jnp.einsum("tpf,tf->tp", features(x), weights) + NOISE * jax.random.normal(keys[2], x.shape)
    return sx.Task((x[:, :num_support], y[:, :num_support]), (x[:, num_support:], y[:, num_support:]))


def exact_posterior(x, y, variance=1.5):
    """Mean and covariance of the weights, densely and in float64."""
    phi, matrix = np.asarray(line_prior().mean["weights"], np.float64), np.asarray(features(x), np.float64)
    precision = matrix.T @ matrix / NOISE**2 + np.eye(4) / variance
    covariance = np.linalg.inv(precision)
    return covariance @ (matrix.T @ np.asarray(y, np.float64) / NOISE**2 + phi / variance), covariance


def names_of(count):
    return [f"task{number:03d}" for number in range(count)]
