"""Held-out scores: adapt to tasks nobody has learned from and judge the result."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ._check import check_at_least, check_key, check_prior
from ._loss import check_loss
from ._prior import Prior
from ._problem import make_problem
from ._select import Selection, module_names
from ._solver import AbstractSolver
from ._task import Task, check_arrays, check_tasks
from ._types import Data, LossFn, Params, SampleFn


def evaluate(
    loss_fn: LossFn,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    *,
    num_steps: int,
    key: PRNGKeyArray | None = None,
    sample: SampleFn | None = None,
    trainable: str | Iterable[str] | Selection | None = None,
    metric_fn: LossFn | None = None,
    chunk_size: int | None = None,
) -> Float[Array, " tasks"]:
    """Adapt to each task's support set and score the adapted parameters on its query set.

    **Arguments:** as [`adapt`][shrinx.adapt], with `tasks` a batch of tasks; `metric_fn(params, query)`: the score, one
    number per task, `loss_fn` by default; `chunk_size`: so many tasks at a time.

    **Returns:** the scores, one per task. A task whose adaptation failed is scored where it stopped.
    With `trainable=[]` nothing adapts and the prior's mean is scored.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> tasks = sx.Task(support=jnp.array([[2.0], [4.0]]), query=jnp.array([[2.0], [4.0]]))
    >>> sx.evaluate(loss_fn, sx.Prior.create(jnp.zeros(1)), tasks, sx.ProximalGD(0.5), num_steps=60)
    Array([0.5, 2. ], dtype=float32)
    """
    args = (loss_fn, metric_fn, prior, tasks, solver, num_steps, key, sample, trainable, chunk_size)
    return _scores(*args, steps=None)[:, -1]


def adaptation_curve(
    loss_fn: LossFn,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    *,
    num_steps: int,
    key: PRNGKeyArray | None = None,
    sample: SampleFn | None = None,
    trainable: str | Iterable[str] | Selection | None = None,
    metric_fn: LossFn | None = None,
    chunk_size: int | None = None,
    steps: Sequence[int] | None = None,
) -> Float[Array, "tasks steps"]:
    """Scores on the query set before adaptation and after every step: who improves, and who overfits?

    **Arguments:** as [`evaluate`][shrinx.evaluate]; `steps`: score after these numbers of steps only, 0 being before
    adaptation, which saves time where a score costs more than a step.

    **Returns:** scores of shape `[tasks, num_steps + 1]`, or `[tasks, len(steps)]`.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> tasks = sx.Task(support=jnp.array([[2.0]]), query=jnp.array([[2.0]]))
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=jnp.inf)
    >>> sx.adaptation_curve(loss_fn, prior, tasks, sx.ProximalGD(0.5), num_steps=2)
    Array([[2.   , 0.5  , 0.125]], dtype=float32)
    """
    check_at_least("num_steps", num_steps, 1)
    found = tuple(range(num_steps + 1)) if steps is None else _checked_steps(steps, num_steps)
    return _scores(loss_fn, metric_fn, prior, tasks, solver, num_steps, key, sample, trainable, chunk_size, found)


def ablate(
    loss_fn: LossFn,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    *,
    num_steps: int,
    subsets: Mapping[str, str | Iterable[str] | Selection] | None = None,
    key: PRNGKeyArray | None = None,
    sample: SampleFn | None = None,
    metric_fn: LossFn | None = None,
    chunk_size: int | None = None,
) -> dict[str, Float[Array, " tasks"]]:
    """Held-out scores when only some modules adapt: does a large variance mean that the module matters?

    **Arguments:** as [`evaluate`][shrinx.evaluate]; `subsets`: from a label to the modules that adapt, by default each
    module alone under its own name. An empty list is no adaptation at all.

    **Returns:** label -> scores, one per task.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda p, x: jnp.sum((p["a"] + p["b"] - x) ** 2)
    >>> prior = sx.Prior.create({"a": jnp.zeros(1), "b": jnp.zeros(1)}, variance={"a": 100.0, "b": 1e-4})
    >>> tasks = sx.Task(support=jnp.array([[1.0]]), query=jnp.array([[1.0]]))
    >>> scores = sx.ablate(loss_fn, prior, tasks, sx.ProximalGD(0.1), num_steps=50)
    >>> {name: round(float(score[0]), 2) for name, score in scores.items()}
    {'a': 0.0, 'b': 1.0}
    """
    check_prior(prior)
    if subsets is not None and not isinstance(subsets, Mapping):
        raise TypeError(f"`subsets` must be a mapping from labels to names of modules, got {type(subsets).__name__}.")
    given = {name: name for name in prior.modules.names} if subsets is None else subsets
    chosen = {label: module_names(names) for label, names in given.items()}
    for names in chosen.values():
        prior.modules.indices(names or ())

    def score(names: tuple[str, ...] | None) -> Float[Array, " tasks"]:
        return evaluate(
            loss_fn,
            prior,
            tasks,
            solver,
            num_steps=num_steps,
            key=key,
            sample=sample,
            trainable=names,
            metric_fn=metric_fn,
            chunk_size=chunk_size,
        )

    return {label: score(names) for label, names in chosen.items()}


def _checked_steps(steps: Any, num_steps: int) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(step) for step in steps)
    except TypeError as error:
        raise TypeError(f"`steps` must be a list of integers, got {steps!r}.") from error
    if not found or min(found) < 0 or max(found) > num_steps:
        raise ValueError(f"`steps` must be numbers from 0 to `num_steps` = {num_steps}, got {list(found)}.")
    return found


def _scores(
    loss_fn: LossFn,
    metric_fn: LossFn | None,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    num_steps: int,
    key: PRNGKeyArray | None,
    sample: SampleFn | None,
    trainable: str | Iterable[str] | Selection | None,
    chunk_size: int | None,
    steps: tuple[int, ...] | None,
) -> Float[Array, "tasks steps"]:
    check_prior(prior)
    check_arrays(tasks)
    check_at_least("num_steps", num_steps, 1)
    check_key(key)
    names = module_names(trainable)
    prior.modules.indices(names or ())
    if chunk_size is not None:
        check_at_least("chunk_size", chunk_size, 1)
    metric_fn = loss_fn if metric_fn is None else metric_fn
    if tasks.progress is not None:
        raise ValueError("Held-out tasks are adapted to from the prior's mean: leave out `task.progress`.")
    return _compiled(loss_fn, metric_fn, prior, tasks, solver, int(num_steps), key, sample, names, chunk_size, steps)


@eqx.filter_jit
def _compiled(
    loss_fn: LossFn,
    metric_fn: LossFn,
    prior: Prior,
    tasks: Task,
    solver: AbstractSolver,
    num_steps: int,
    key: PRNGKeyArray | None,
    sample: SampleFn | None,
    trainable: tuple[str, ...] | None,
    chunk_size: int | None,
    steps: tuple[int, ...] | None,
) -> Float[Array, "tasks steps"]:
    num_tasks = check_tasks(tasks)
    if tasks.query is None:
        raise ValueError("Scores are taken on `task.query`, which is missing.")
    keys = None if key is None else jax.random.split(key, num_tasks)

    def score(inputs: tuple[Data, Data, PRNGKeyArray | None]) -> Float[Array, " steps"]:
        support, query, task_key = inputs
        check_loss(metric_fn, prior.mean, query, "metric_fn")
        if trainable == ():
            return jnp.repeat(metric_fn(prior.mean, query)[None], 1 if steps is None else len(steps))
        problem = make_problem(
            loss_fn,
            prior,
            support,
            solver,
            num_steps=num_steps,
            key=task_key,
            sample=sample,
            trainable=trainable,
            what="task.support",
        )
        if steps is None:
            return metric_fn(problem.run(prior).params, query)[None]
        due = jnp.zeros(num_steps + 1, bool).at[jnp.asarray(steps)].set(True)

        def observe(index: Array, params: Params) -> Float[Array, ""]:
            score = partial(metric_fn, params, query)
            # Steps are counted alike in all tasks, so that under `vmap` this stays a branch that is not taken.
            return jax.lax.cond(due[index + 1], score, lambda: jnp.full_like(jax.eval_shape(score), jnp.nan))

        _, seen = problem.watch(prior, observe)
        return jnp.concatenate([metric_fn(prior.mean, query)[None], seen])[jnp.asarray(steps)]

    return jax.lax.map(score, (tasks.support, tasks.query, keys), batch_size=chunk_size or num_tasks)
