"""Tasks of different sizes: rows padded to the longest, with weights that leave the padding out."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from ._check import check_at_least, check_data, check_key
from ._modules import _named_leaves
from ._types import Data, Scalar


def _as_weights(weights: Any) -> Any:
    """As floating numbers: in whole ones or truth values no sum of weighted losses can be computed."""
    if isinstance(weights, list | tuple):
        weights = np.asarray(weights)
    if isinstance(weights, jax.Array | np.ndarray) and not jnp.issubdtype(weights.dtype, jnp.floating):
        if not any(jnp.issubdtype(weights.dtype, kind) for kind in (jnp.integer, jnp.bool_)):
            raise TypeError(f"`weights` must be numbers, one for each row, got {weights.dtype}.")
        return jnp.asarray(weights, jnp.result_type(float))
    return weights


class Rows(eqx.Module):
    r"""Rows of data and how much each counts: what makes one batch of tasks that differ in size.

    `Rows.stack` pads every task to the longest, and gives its own rows a weight of 1 and the padding 0. A loss
    computes one number for each row and adds them up with `batch.sum`, which is the negative log-likelihood of a task's
    real rows. Divide by one constant for all tasks if sums are too large for the solver's step size, but not by the
    size of the task: the sum is what makes a prior outweigh three rows and yield to three hundred.

    $$ \ell(\theta) = \textstyle\sum_i w_i \, \ell_i(\theta) $$

    **Attributes:**

    - `data`: a pytree of arrays, all with a leading axis of rows (of tasks and rows, for a batch of tasks).
    - `weights`: of that leading shape, or a mask, which becomes weights of 1 and 0; a row of weight 0 is not there,
      but must be as harmless to the loss's gradient as the others, which what a NaN becomes is not. Padding by `stack`
      is: it repeats the task's own rows.

    >>> import jax, jax.numpy as jnp, numpy as np, shrinx as sx
    >>> sizes = (3, 50)
    >>> tasks = sx.Rows.stack([{"x": np.ones((n, 1)), "y": np.full(n, 2.0)} for n in sizes])
    >>> tasks.data["x"].shape, tasks.count
    ((2, 50, 1), Array([ 3, 50], dtype=int32))
    >>> def loss_fn(params, batch):
    ...     return batch.sum(0.5 * (batch.data["x"] @ params - batch.data["y"]) ** 2)
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=0.1)
    >>> adapt = lambda task: sx.adapt(loss_fn, prior, task, sx.ProximalGD(0.01), num_steps=500).params
    >>> [round(float(slope), 2) for slope in jax.vmap(adapt)(tasks)[:, 0]]  # Three rows move less than fifty.
    [0.46, 1.67]
    """

    data: Data
    weights: Float[Array, "*tasks rows"] = eqx.field(converter=_as_weights)

    def __check_init__(self):
        shape = getattr(self.weights, "shape", None)
        if shape is None:  # Axes, shardings and the like: a tree of this structure that holds no rows.
            return
        for path, leaf in _named_leaves(self.data, "array"):
            if hasattr(leaf, "shape") and leaf.shape[: len(shape)] != shape:
                raise ValueError(
                    f"`weights` has shape {list(shape)}, one for each row, but '{path}' of `data` {list(leaf.shape)}: "
                    "its leading axes must be the same."
                )

    @staticmethod
    def stack(tasks: Sequence[Data], *, length: int | None = None) -> "Rows":
        """Several tasks as one batch, each padded with rows of its own.

        **Arguments:** `tasks`, each a pytree of arrays with a leading axis of rows; `length`: pad to so many rows.
        Where batches are drawn again and again, one length for all of them saves compiling anew.
        """
        if isinstance(tasks, Mapping):
            raise TypeError(
                "`tasks` must be a list, with the arrays of a task in each place; of a single one `[task]`."
            )
        tasks = list(tasks)
        if not tasks:
            raise ValueError("`tasks` is empty; there must be one at least.")
        counts = [_count_rows(task, f"tasks[{place}]") for place, task in enumerate(tasks)]
        _check_alike(tasks)
        longest = max(counts)
        if length is None:
            length = longest
        check_at_least("length", length, 1)
        if length < longest:
            raise ValueError(f"`length` is {length}, but tasks[{counts.index(longest)}] has {longest} rows.")
        # Rows of the task's own are as harmless to any loss as the others; zeros might not be.
        own = [np.arange(length) % count for count in counts]

        def pad(*leaves: Any) -> Array:
            return jnp.asarray(np.stack([np.asarray(leaf)[rows] for leaf, rows in zip(leaves, own, strict=True)]))

        weights = np.stack([np.arange(length) < count for count in counts])
        return Rows(jax.tree.map(pad, *tasks), jnp.asarray(weights, dtype=jnp.result_type(float)))

    @property
    def count(self) -> Int[Array, "*tasks"]:
        """How many rows are there."""
        return jnp.sum(self.weights > 0, axis=-1, dtype=jnp.int32)

    def sum(self, values: Shaped[Array, "..."]) -> Scalar:
        """Of one number for each row, padding left out: Σ w v. What is right or wrong counts as 1 or 0."""
        _check_values(values, self.weights)
        dtype = values.dtype if jnp.issubdtype(values.dtype, jnp.floating) else self.weights.dtype
        # Not the product alone: a padded row may be infinite.
        return jnp.sum(jnp.where(self.weights > 0, values.astype(dtype) * self.weights.astype(dtype), 0))

    def mean(self, values: Shaped[Array, "..."]) -> Scalar:
        """The same as a mean, Σ w v / Σ w: for scores. Of no rows at all it is NaN."""
        total = self.sum(values)
        return total / jnp.sum(self.weights).astype(total.dtype)

    def split(self, key: PRNGKeyArray, share: float = 0.5) -> tuple["Rows", "Rows"]:
        """One task's rows in two parts at random, such as support and query: the same data with other weights.

        **Arguments:** `share` of the rows that goes to the first part; each has one row at least, if there are two. Of
        several tasks: `jax.vmap(sx.Rows.split)(rows, keys)`, with a key for each. A task of one row has nothing in the
        second part, a sum of 0 and no mean: leave it out of meta-training.

        >>> import jax, jax.numpy as jnp, shrinx as sx
        >>> rows = sx.Rows(jnp.arange(5.0), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]))
        >>> support, query = rows.split(jax.random.key(0))
        >>> support.weights + query.weights, support.count
        (Array([1., 1., 1., 1., 0.], dtype=float32), Array(2, dtype=int32))
        """
        if not 0 < share < 1:
            raise ValueError(f"`share` must be above 0 and below 1, got {share}.")
        check_key(key, needed=True)
        if self.weights.ndim != 1:
            raise ValueError("These are several tasks: split them by `jax.vmap(sx.Rows.split)(rows, keys)`.")
        count = self.count
        wanted = jnp.round(count.astype(jnp.result_type(float)) * share).astype(jnp.int32)
        first = _random_places(key, self.weights > 0) < jnp.clip(wanted, 1, jnp.maximum(count - 1, 1))
        parts = (jnp.where(part, self.weights, 0) for part in (first, ~first))
        support, query = (Rows(self.data, weights) for weights in parts)
        return support, query


class RowSample(eqx.Module):
    r"""Mini-batches of [`Rows`][shrinx.Rows]: `sample=RowSample(16)` draws 16 rows in every step, padding never.

    Of a task with fewer it takes all. Weights are scaled up by rows there are over rows drawn, so that `batch.sum` of a
    mini-batch is the sum over the task on average.

    **Arguments:** `size`, how many rows.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> rows = sx.Rows(jnp.arange(5.0), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0]))
    >>> batch = sx.RowSample(2)(jax.random.key(0), rows)
    >>> batch.data.shape, batch.weights
    ((2,), Array([2., 2.], dtype=float32))
    """

    size: int = eqx.field(static=True)

    def __check_init__(self):
        check_at_least("size", self.size, 1)

    def __call__(self, key: PRNGKeyArray, rows: Any) -> Rows:
        if not isinstance(rows, Rows):
            raise TypeError(f"`RowSample` draws from `Rows`, got {type(rows).__name__}; make them by `Rows.stack`.")
        if rows.weights.ndim != 1:
            raise ValueError(
                f"`RowSample` draws from one task at a time, got weights of shape {list(rows.weights.shape)}. "
                "Do all arrays of the tasks have a leading task axis, as `Rows.stack` makes it?"
            )
        if self.size >= len(rows.weights):
            return rows
        drawn = jnp.argsort(_random_places(key, rows.weights > 0))[: self.size]
        scale = jnp.maximum(rows.count / self.size, 1).astype(rows.weights.dtype)
        return Rows(jax.tree.map(lambda leaf: leaf[drawn], rows.data), rows.weights[drawn] * scale)


def _random_places(key: PRNGKeyArray, there: Bool[Array, " rows"]) -> Int[Array, " rows"]:
    """A random order of the rows that are there, before all others."""
    order = jnp.argsort(jnp.where(there, jax.random.uniform(key, there.shape), 2))
    return jnp.argsort(order).astype(jnp.int32)


def _check_values(values: Array, weights: Array) -> None:
    if jnp.shape(values) != weights.shape:
        raise ValueError(
            f"Give one number for each row, shape {list(weights.shape)}; got shape {list(jnp.shape(values))}. Sum over "
            "the other axes first."
        )


def _count_rows(task: Data, what: str) -> int:
    named = _named_leaves(task, "array")
    for path, leaf in named:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None:
            kind = type(leaf).__name__
            raise TypeError(
                f"'{path}' of `{what}` is no array but a {kind}; lists become one by `np.asarray`, tables by "
                "`.to_numpy(dtype=float)`."
            )
        if not any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_)):
            raise TypeError(f"'{path}' of `{what}` holds no numbers but {dtype}.")
    check_data(task, what)
    counts = {path: jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for path, leaf in named}
    if 0 in counts.values() or len(set(counts.values())) > 1:
        raise ValueError(f"All arrays of `{what}` need a leading axis of as many rows, got {counts}.")
    return next(iter(counts.values()))


def _check_alike(tasks: Sequence[Data]) -> None:
    """All must have the arrays of the first but for the number of rows."""

    def form(task: Data) -> dict[str, tuple]:
        return {path: (jnp.shape(leaf)[1:], str(jnp.result_type(leaf))) for path, leaf in _named_leaves(task, "array")}

    first = form(tasks[0])
    for place, task in enumerate(tasks):
        if jax.tree.structure(task) != jax.tree.structure(tasks[0]) or form(task) != first:
            raise ValueError(
                f"tasks[{place}] has arrays {form(task)} and tasks[0] {first}: only the number of rows may differ."
            )
