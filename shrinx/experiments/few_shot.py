"""Few-shot image classification: what the experiments `omniglot` and `miniimagenet` share.

A task is a handful of classes nobody has seen and one image of each. Batch norm has no memory: what an image is taken
for depends on those it is classified with. In training these are all query images of the task, in the test as many as
`queries_at_once` says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from .._modules import by_label, by_layer
from .._prior import Prior
from .._select import Share
from .._types import LossFn
from ..models.conv import ConvNet, ConvParams
from ..runs.errors import UserError
from ..runs.meta import Setup, TaskSource
from ..runs.studies import Range
from ..tasks.images import Rows, in_batches, sample_rows
from .algorithms import PLAIN, SIGMA, LearnerConfig, make_learner

ALGORITHMS = (*SIGMA, *PLAIN)
PRESETS = ("quick", "paper")


@dataclass(frozen=True)
class Config(LearnerConfig):
    ways: int = 5
    """Classes of a task."""
    shots: int = 1
    """Images of a class that a held-out task is adapted to."""
    train_shots: int = 1
    """The same in meta-training, where Reptile needs more than one to see what generalises."""
    queries: int = 15
    """Images of a class that adapted parameters are judged by."""
    queries_at_once: int | None = None
    """So many of them are classified together in the test, with as many of every other class; all by default."""
    batch_size: int = 5
    """Images in a step of adaptation; all there are if they are fewer."""
    num_filters: int = 64
    """Filters of each convolution."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What convolutions are computed in."""
    curve_steps: int | None = None
    """How far curves of held-out tasks go; ten times --adapt-steps by default."""
    shared_variance: bool = False
    """One variance for all modules: the paper's ablation."""
    data_dir: str | None = None
    """Where the data are; the folder SHRINX_DATA by default."""


def search_space(config: Config) -> dict[str, Range]:
    """What `tune` varies: the numbers the algorithm has, from a third to three times the configuration's."""
    fields = ["mean_rate", "inner_rate"]
    if config.algorithm in SIGMA:
        fields += ["variance_rate", "variance"]
    if config.algorithm.endswith("imaml"):
        fields += ["damping"]
    return {field: Range(getattr(config, field) / 3, getattr(config, field) * 3) for field in fields}


def setup(
    config: Config,
    network: ConvNet,
    episodes: Callable[..., TaskSource],
    *,
    split: Callable[[int], Any] | None = None,
    test_chunk: int,
) -> Setup:
    """Everything but the data.

    **Arguments:** `episodes(part, **counts)` is the source of tasks of a part of the data, "train", "validation" or
    "test", its `counts` those of `sample_episodes`; `split`, `test_chunk`: see `Setup`.
    """

    def init(key: jax.Array) -> Prior:
        params = network.init(key)
        modules = by_label(params, lambda path: "all") if config.shared_variance else by_layer(params)
        return Prior.create(params, modules=modules, variance=config.variance)

    def sample(key: jax.Array, data: Rows) -> Rows:
        return data if len(data[1]) <= config.batch_size else sample_rows(key, data, size=config.batch_size)

    counts = {"ways": config.ways, "queries": config.queries}
    accuracy = _accuracy(config, network)
    held_out = {"num_tasks": config.num_test_tasks, "shots": config.shots, **counts}
    return Setup(
        learner=make_learner(config, sample=sample),
        average=config.average,
        loss_fn=network.cross_entropy,
        init=init,
        train_tasks=episodes("train", num_tasks=config.tasks_per_update, shots=config.train_shots, **counts),
        test_tasks=episodes("test", **held_out),
        validation_tasks=episodes("validation", **held_out),
        split=split,
        num_updates=config.num_updates,
        keep_best=config.keep_best,
        adapt_steps=config.adapt_steps,
        curve_steps=config.curve_steps,
        metric_name="accuracy",
        metric_fn=accuracy,
        also={} if accuracy == network.accuracy else {"all, one batch": network.accuracy},
        lower_is_better=False,
        # Variances spread from 100 down to the least that is allowed, and the widest gap may be anywhere.
        rule=Share(),
        # On a CPU updates take long, and between chunks nothing is shown, kept or interrupted. But what is best is the
        # best of chunks, and the same wherever it runs.
        chunk=100 if config.keep_best or jax.default_backend() == "gpu" else 10,
        test_chunk=test_chunk,
    )


def _accuracy(config: Config, network: ConvNet) -> LossFn:
    """Of batches with `queries_at_once` images of every class: batch norm sees no others."""
    size = config.queries if config.queries_at_once is None else config.queries_at_once
    if size < 1 or config.queries % size:
        raise UserError(
            f"`queries_at_once` must divide the {config.queries} `queries` of a class, got {config.queries_at_once}."
        )
    if size == config.queries:
        return network.accuracy

    def accuracy(params: ConvParams, query: Rows) -> jax.Array:
        batches = jax.tree.map(lambda rows: in_batches(rows, config.ways, size), query)
        return jnp.mean(jax.vmap(lambda batch: network.accuracy(params, batch))(batches))

    return accuracy
