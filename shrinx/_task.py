"""Tasks: a little data to adapt to, and a little more to be judged by."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ._check import check_data
from ._modules import _named_leaves
from ._problem import Progress
from ._types import Data


class Task(eqx.Module):
    """A task, or a batch of tasks whose arrays all have a leading task axis.

    **Attributes:**

    - `support`: what a task is adapted to (the paper's training set).
    - `query`: what the adapted parameters are judged by (its validation set). Plain Reptile does without.
    - `mesh`: of the devices that a batch has been spread over by [`spread`][shrinx.spread], if it has.
    - `progress`: a learner goes on from here instead of from the prior's mean, see [`Learner`][shrinx.Learner].

    >>> import jax.numpy as jnp, shrinx as sx
    >>> tasks = sx.Task(support=jnp.zeros((5, 10, 2)), query=jnp.zeros((5, 3, 2)))  # 5 tasks
    >>> tasks.support.shape[0]
    5
    """

    support: Data
    query: Data | None = None
    mesh: Mesh | None = eqx.field(static=True, default=None)
    progress: Progress | None = None


def check_task(task: Any) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"Expected a `Task(support=..., query=...)`, got {type(task).__name__}.")


def check_arrays(tasks: Any) -> None:
    """What is no array at all (a table, text) would be said by JAX, at length, on the way into a compiled program."""
    check_task(tasks)
    leaves = jax.tree.leaves((tasks.support, tasks.query))
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        check_tasks(tasks)


def check_tasks(tasks: Task) -> int:
    """The number of tasks in a batch; an error if the parts disagree or nothing is there."""
    check_task(tasks)
    if not isinstance(tasks.progress, Progress | None):
        kind = type(tasks.progress).__name__
        raise TypeError(f"`task.progress` must come from `learner.progress(...)` or `info.progress`, got {kind}.")
    parts = {"task.support": tasks.support, "task.query": tasks.query, "task.progress": tasks.progress}
    counts = {}
    for name, part in parts.items():
        if part is None and name != "task.support":
            continue
        if name != "task.progress":
            check_data(part, name)
        for path, leaf in _named_leaves(part, "array"):
            if jnp.ndim(leaf) == 0:
                raise ValueError(f"`{name}` leaf '{path}' is a scalar; arrays need a leading task axis.")
            counts[f"{name}/{path}"] = jnp.shape(leaf)[0]
    if len(set(counts.values())) > 1:
        raise ValueError(f"The leading task axes differ: {counts}.")
    return next(iter(counts.values()))
