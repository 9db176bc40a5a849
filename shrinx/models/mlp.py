"""A multilayer perceptron as a flat dictionary: weights w0, w1, … and biases b0, b1, …, each nameable as a module."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

MlpParams = dict[str, Float[Array, "..."]]


def init(key: PRNGKeyArray, sizes: Sequence[int], *, first_scale: float | Array = 1.0) -> MlpParams:
    """He-normal weights and zero biases; `first_scale` multiplies the weights of the first layer."""
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"An MLP needs at least two positive sizes, got {tuple(sizes)}.")
    params = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        key, weight_key = jax.random.split(key)
        scale = jnp.sqrt(2 / inputs) * (first_scale if layer == 0 else 1.0)
        params[f"w{layer}"] = scale * jax.random.normal(weight_key, (inputs, outputs))
        params[f"b{layer}"] = jnp.zeros(outputs)
    return params


def apply(
    params: MlpParams, x: Float[Array, "points inputs"], activation: Callable[[Array], Array] = jax.nn.relu
) -> Float[Array, "points outputs"]:
    num_layers = len(params) // 2
    for layer in range(num_layers):
        x = x @ params[f"w{layer}"] + params[f"b{layer}"][None]
        if layer < num_layers - 1:
            x = activation(x)
    return x


def squared_error(params: MlpParams, batch: tuple[Array, Array]) -> Float[Array, ""]:
    """Mean squared error: the loss of the regression experiments."""
    x, y = batch
    return jnp.mean(jnp.square(apply(params, x) - y))
