"""What an experiment hands to the loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._averaging import Averaged
from .._learner import Learner
from .._prior import Prior
from .._select import AbstractRule, LargestGap
from .._solver import AbstractSolver
from .._task import Task
from .._types import LossFn, SampleFn
from .errors import UserError

TaskSource: TypeAlias = Callable[..., Task]
"""`source(key)`, or `source(key, split)` if the setup has splits, draws a batch of tasks inside the compiled loop.
A source that holds a data set is an `eqx.Partial`: its arrays are then arguments of the compiled program instead of
constants in it."""


@dataclass(frozen=True)
class Setup:
    """What an experiment hands to the loop."""

    learner: Learner
    loss_fn: LossFn
    init: Callable[[PRNGKeyArray], Prior]
    train_tasks: TaskSource
    test_tasks: TaskSource
    num_updates: int
    adapt_steps: int
    """Steps of adaptation at which held-out tasks are scored."""
    metric_name: str
    validation_tasks: TaskSource | None = None
    """For choosing hyperparameters; by default tasks as in the test, but others."""
    split: Callable[[int], Any] | None = None
    """From a seed to arrays of its own, such as the classes it trains on; the sources get them after the key."""
    learner_of: Callable[[Any], Learner] | None = None
    """From such arrays to a learner, where rates are among them; `learner` everywhere by default."""
    curve_steps: int | None = None
    """How far adaptation curves go; ten times `adapt_steps` by default."""
    average: int = 0
    """Held-out tasks are judged by the average over about so many last steps; 0 is the learner's own way."""
    metric_fn: LossFn | None = None
    also: Mapping[str, LossFn] = field(default_factory=dict)
    """Further scores, by name, of held-out tasks with all modules adapted."""
    lower_is_better: bool = True
    rule: AbstractRule = field(default_factory=LargestGap)
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further sets of modules to score, besides all, each alone, and the selected ones."""
    keep_best: bool = False
    """Hand on the prior after the chunk of updates with the least query loss, not the last one."""
    chunk: int = 500
    test_chunk: int | None = None
    """So many held-out tasks are adapted at a time, to save memory; all by default."""
    lanes_at_once: int | None = None
    """So many of the trainings that go side by side are under one `vmap`, to save memory; all by default."""
    extras: Callable[["Outcome"], dict[str, Any]] | None = None
    """What the experiment itself adds to the result: figures, example predictions."""

    def splits(self, seeds: Sequence[int]) -> Any:
        """The arrays of each seed, along a leading axis; `None` if there are none."""
        if self.split is None:
            return None
        try:
            return stack([self.split(seed) for seed in seeds])
        except ValueError as error:
            raise UserError(str(error)) from error

    def check(self, split: Any) -> None:
        """Raise for tasks that the data cannot serve, before anything is trained on them."""
        learner, key = self.learner_for(split), jax.random.key(0)

        def drawn(source: TaskSource, query_sample: SampleFn | None) -> None:
            one = jax.tree.map(lambda leaf: leaf[0], draw(source, key, split))
            for sample, data in ((learner.sample, one.support), (query_sample, one.query)):
                if sample is not None:
                    sample(key, data)

        try:
            jax.eval_shape(lambda: drawn(self.train_tasks, learner.query_sample))
            # Held-out tasks are scored on their whole query sets.
            jax.eval_shape(lambda: drawn(self.test_tasks, None))
        except ValueError as error:
            raise UserError(str(error)) from error

    def learner_for(self, split: Any) -> Learner:
        return self.learner if self.learner_of is None else self.learner_of(split)

    def solver_for(self, split: Any) -> AbstractSolver:
        """For held-out tasks."""
        return self.averaged(self.learner_for(split).solver)

    def averaged(self, solver: AbstractSolver) -> AbstractSolver:
        return Averaged(solver, self.average) if self.average and not isinstance(solver, Averaged) else solver


@dataclass(frozen=True)
class Outcome:
    """What was learned, for an experiment's own figures."""

    priors: Prior
    """One per seed, along a leading axis."""
    test_tasks: Task
    """The held-out tasks of each seed, likewise."""
    selected: tuple[str, ...]

    @property
    def first(self) -> Prior:
        """The prior of the first seed."""
        return jax.tree.map(lambda x: x[0], self.priors)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of numbers and arrays as one, along a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def draw(source: TaskSource, key: PRNGKeyArray, split: Any) -> Task:
    return source(key) if split is None else source(key, split)
