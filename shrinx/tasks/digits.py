"""Tasks from the 1,797 handwritten digits of scikit-learn: other inputs, or other labels, in every task."""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._task import Task

TRAINING_DIGITS = 1200


Digits: TypeAlias = tuple[Float[Array, "n 8 8"], Int[Array, " n"]]
"""Images with values from 0 to 1, and what they show."""


def load(split: Literal["train", "test"]) -> Digits:
    """The digits to learn from, and others."""
    try:
        from sklearn import datasets  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ImportError("The digits come with scikit-learn: pip install 'shrinx[examples]'.") from error
    images, labels = datasets.load_digits(return_X_y=True)
    rows = slice(TRAINING_DIGITS) if split == "train" else slice(TRAINING_DIGITS, None)
    return jnp.asarray(images[rows].reshape(-1, 8, 8) / 16, jnp.float32), jnp.asarray(labels[rows], jnp.int32)


def sample_scanners(
    key: PRNGKeyArray,
    digits: Digits,
    num_scanners: int,
    *,
    num_support: int = 30,
    num_query: int = 30,
    dirt: float = 0.7,
) -> Task:
    """Scanners with dirt on the glass: each adds a pattern of its own, of deviation `dirt`, to all its images."""
    images, labels = digits

    def scanner(key: PRNGKeyArray) -> Task:
        choose, soil = jax.random.split(key)
        rows = jax.random.choice(choose, len(labels), (num_support + num_query,), replace=False)
        scanned = images[rows] + dirt * jax.random.normal(soil, (1, 8, 8))
        return Task(
            support=(scanned[:num_support], labels[rows[:num_support]]),
            query=(scanned[num_support:], labels[rows[num_support:]]),
        )

    return jax.vmap(scanner)(jax.random.split(key, num_scanners))


def sample_customers(
    key: PRNGKeyArray, digits: Digits, num_customers: int, *, num_symbols: int = 4, num_each: int = 10
) -> Task:
    """Customers to whom `num_symbols` digits, chosen and ordered by each of them, stand for 0, 1, 2, …"""
    images, labels = digits

    def customer(key: PRNGKeyArray) -> Task:
        choose, order = jax.random.split(key)
        symbols = jax.random.permutation(order, 10)[:num_symbols]
        scores = jax.random.uniform(choose, (num_symbols, len(labels)))
        shown = jnp.where(labels[None] == symbols[:, None], scores, -1)
        rows = jax.lax.top_k(shown, 2 * num_each)[1]
        meanings = jnp.repeat(jnp.arange(num_symbols, dtype=jnp.int32), num_each)
        return Task(
            support=(images[rows[:, :num_each].ravel()], meanings),
            query=(images[rows[:, num_each:].ravel()], meanings),
        )

    return jax.vmap(customer)(jax.random.split(key, num_customers))
