"""The networks of the cases in plain JAX, on the parameters of the case as they are."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ..case import Batch, Case


def loss_of(case: Case) -> Callable:
    """`loss(params, examples)`: mean squared error, or cross-entropy of labels."""
    return squared_error if case.network == "mlp" else cross_entropy


def arrays(case: Case) -> tuple[dict, Batch]:
    """The parameters, and all batches along a leading axis."""
    return jax.tree.map(jnp.asarray, (case.params, jax.tree.map(lambda *leaves: np.stack(leaves), *case.batches)))


def squared_error(params, examples):
    hidden, y = examples
    for layer in range(3):
        hidden = hidden @ params[f"{layer}/weight"] + params[f"{layer}/bias"]
        hidden = jax.nn.relu(hidden) if layer < 2 else hidden
    return jnp.mean((hidden - y) ** 2)


def cross_entropy(params, examples):
    hidden, labels = examples
    for block in range(4):
        kernel = params[f"conv{block}/kernel"]
        hidden = jax.lax.conv_general_dilated(
            hidden, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = jnp.mean(hidden, (0, 1, 2)), jnp.var(hidden, (0, 1, 2))
        hidden = (hidden - mean) * jax.lax.rsqrt(variance + 1e-3)
        hidden = jax.nn.relu(hidden * params[f"norm{block}/scale"] + params[f"norm{block}/offset"])
        hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    logits = hidden.reshape(len(labels), -1) @ params["output/kernel"] + params["output/bias"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))
