"""Many trials of one experiment at once: the numbers of a configuration as arrays, side by side as seeds are.

Only fields that leave all shapes and the number of steps alone can vary within a batch: rates, damping, variances and
the like. The rest (inner steps, network sizes) is fixed by the base configuration.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._evaluate import evaluate
from .._prior import Prior
from .kept import Kept
from .parallel import over_seeds
from .setup import Setup, TaskSource, draw
from .training import train_chunk

Progress: TypeAlias = Callable[[int, np.ndarray], None]
"""Called with how many updates are made and the query loss of each trial in the last of them."""


def with_values(config: Any, values: Mapping[str, Any]) -> Any:
    """A configuration with other numbers in some of its fields, which may be tracers."""
    changed = copy.copy(config)
    for field, value in values.items():
        # Past the constructor: under vmap these are tracers, not the floats the fields are annotated with.
        object.__setattr__(changed, field, value)
    return changed


def score_trials(
    setup_of: Callable[[Any], Setup],
    base: Any,
    trials: Mapping[str, np.ndarray],
    *,
    seed: int = 0,
    subsets: Mapping[str, tuple[str, ...] | None] | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Meta-train every trial and score it on validation tasks, drawn apart from training and test tasks.

    **Arguments:** `setup_of` makes a `Setup` from a configuration; `base` is that configuration; `trials` maps field
    names to one value per trial; `subsets` maps labels to the modules that adapt (`None`: all); `chunk` is how many
    updates are made between two calls of `progress`, by default the setup's own.

    **Returns:** label -> score per trial (mean over validation tasks), and `log_variance` of shape `[trials, modules]`.
    """
    return Search(setup_of, base, seed=seed, chunk=chunk).score(trials, subsets=subsets, progress=progress)


class Search:
    """[`score_trials`][shrinx.runs.search.score_trials] again and again: batches of as many trials compile once."""

    def __init__(self, setup_of: Callable[[Any], Setup], base: Any, *, seed: int = 0, chunk: int | None = None):
        self._shared, self._num_updates = setup_of(base), base.num_updates
        self._chunk = self._shared.chunk if chunk is None else chunk
        key, shared = jax.random.key(seed), self._shared
        split = jax.tree.map(lambda x: x[0], shared.splits([seed]))
        shared.check(split)

        def configured(one: dict[str, Array]) -> Setup:
            return setup_of(with_values(base, one))

        def init(one: dict[str, Array]) -> Kept:
            setup = configured(one)
            return Kept.begin(setup.learner, setup.init(jax.random.fold_in(key, 0)))

        def train(
            lane: tuple[dict[str, Array], Kept], start: Array, num_updates: int, source: TaskSource
        ) -> tuple[Kept, Array]:
            one, kept = lane
            setup = configured(one)
            kept, metrics = train_chunk(setup, setup.learner, (kept, key, split), source, start, num_updates)
            return kept, metrics["query_loss"]

        def judge(lane: tuple[dict[str, Array], Prior], source: TaskSource) -> Array:
            one, prior = lane
            setup = configured(one)
            task_key, adapt_key = jax.random.split(jax.random.fold_in(key, 3))
            scores = evaluate(
                setup.loss_fn,
                prior,
                draw(source, task_key, split),
                setup.solver_for(split),
                num_steps=setup.adapt_steps,
                key=adapt_key,
                sample=setup.learner.sample,
                metric_fn=setup.metric_fn,
                chunk_size=setup.test_chunk,
            )
            return jnp.mean(scores)

        self._init = over_seeds(init)
        self._train, self._judge = over_seeds(train), over_seeds(judge)

    def score(
        self,
        trials: Mapping[str, np.ndarray],
        *,
        subsets: Mapping[str, tuple[str, ...] | None] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, np.ndarray]:
        """What `score_trials` returns."""
        values = {name: jnp.asarray(column, jnp.float32) for name, column in trials.items()}
        kept, shared = self._init(values), self._shared
        for start in range(0, self._num_updates, self._chunk):
            count = min(self._chunk, self._num_updates - start)
            kept, losses = self._train((values, kept), jnp.asarray(start, jnp.int32), count, shared.train_tasks)
            if progress is not None:
                progress(start + count, np.asarray(losses))
        # The tasks are those of the base: a data set goes into the compiled programs as an argument.
        tasks = shared.validation_tasks or shared.test_tasks

        def adapting(names: tuple[str, ...] | None) -> Prior:
            # Not by `trainable`, whose names are a part of the program: every set would be compiled anew.
            return kept.prior if names is None else jax.vmap(lambda prior: prior.freeze_all_but(names))(kept.prior)

        subsets = {"all": None} if subsets is None else subsets
        result = {label: np.asarray(self._judge((values, adapting(names)), tasks)) for label, names in subsets.items()}
        return {**result, "log_variance": np.asarray(kept.prior.log_variance)}
