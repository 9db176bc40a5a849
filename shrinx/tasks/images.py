"""Tasks of image classification, made on the device from one array of bytes.

The array holds all characters (or other classes) and their drawings; a split of the data is an array of indices of
characters, so that all splits and seeds share it. It is an argument of every source and must not become a constant of
a compiled program: hand `eqx.Partial(sample_alphabets, images, alphabets, num_tasks=20)` through `eqx.filter_jit`.

Support and query are rows of images and labels; a label is the position of its class in the task. Tasks with fewer
drawings than there is room for have rows with the label `ABSENT`, which no mini-batch contains: how many drawings and
alphabets there are can then be numbers that the compiled program does not know.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, Shaped, UInt8

from .._task import Task
from .augment import Affine, augment, to_float

Dataset = UInt8[Array, "characters drawings height width channels"]
Rows = tuple[Shaped[Array, "*tasks _ height width channels"], Int[Array, "*tasks _"]]
Count = int | Int[Array, ""]

ABSENT = -1
"""The label of a row that is not there."""


def sample_alphabets(
    images: Dataset,
    alphabets: Int[Array, "alphabets classes"],
    key: PRNGKeyArray,
    *,
    num_tasks: int,
    num_support: int = 15,
    num_query: int = 5,
    num_alphabets: Count | None = None,
    num_present: Count | None = None,
) -> Task:
    """Tasks of augmented Omniglot (appendix E.1): each is an alphabet, drawn with replacement, its classes fixed.

    Support and query are bytes: the first `num_support` and the last `num_query` drawings of every class. Draw
    mini-batches with `sample_augmented`. With `num_alphabets` tasks are the first so many of the alphabets, with
    `num_present` only the first so many of the support drawings are there.
    """
    chosen = jax.random.randint(key, (num_tasks,), 0, len(alphabets) if num_alphabets is None else num_alphabets)
    support, query = _split_drawings(images, alphabets[chosen], num_support, num_query)
    return Task(support=_only_first(support, num_support, num_present), query=query)


def held_out_alphabets(
    images: Dataset,
    alphabets: Int[Array, "alphabets classes"],
    key: PRNGKeyArray,
    *,
    affine: Affine,
    num_support: int = 15,
    num_query: int = 5,
    num_present: Count | None = None,
) -> Task:
    """Every alphabet once; the whole query set is augmented, as test images are, and ready to be scored."""
    support, (query, labels) = _split_drawings(images, alphabets, num_support, num_query)
    augmented = jax.vmap(lambda key, images: augment(key, images, affine))(jax.random.split(key, len(labels)), query)
    return Task(support=_only_first(support, num_support, num_present), query=(augmented, labels))


def sample_episodes(
    images: Dataset,
    classes: Int[Array, " classes"],
    key: PRNGKeyArray,
    *,
    num_tasks: int,
    ways: int,
    shots: int,
    queries: int,
    rotations: bool = False,
) -> Task:
    """N-way K-shot tasks: `ways` of the classes, `shots` and `queries` other drawings of each, as floats in [0, 1].

    With `rotations` every class counts four times, turned by 0, 90, 180 and 270 degrees, as in few-shot Omniglot.
    """
    turns, num_drawings = 4 if rotations else 1, images.shape[1]
    _check_drawings(num_drawings, shots, queries)
    if ways > turns * len(classes):
        raise ValueError(f"There are {turns * len(classes)} classes to choose from; {ways} `ways` are too many.")
    if rotations and images.shape[2] != images.shape[3]:
        raise ValueError(f"Only square images can be turned by 90 degrees, got {images.shape[2:4]}.")

    def episode(key: PRNGKeyArray) -> Array:
        class_key, drawing_key = jax.random.split(key)
        chosen = _distinct(class_key, turns * len(classes), ways)
        keys = jax.random.split(drawing_key, ways)
        drawings = jax.vmap(lambda key: _distinct(key, num_drawings, shots + queries))(keys)
        picked = images[classes[chosen // turns][:, None], drawings]
        return jax.vmap(_turn)(picked, chosen % turns) if rotations else picked

    picked = to_float(jax.vmap(episode)(jax.random.split(key, num_tasks)))
    return Task(support=_as_rows(picked[:, :, :shots]), query=_as_rows(picked[:, :, shots:]))


def sample_rows(key: PRNGKeyArray, data: Rows, *, size: int) -> Rows:
    """A mini-batch: `size` different rows of those that are there, which must be as many."""
    images, labels = data
    if size > len(labels):
        raise ValueError(f"A mini-batch of {size} different images cannot be drawn from {len(labels)}.")
    rows = _distinct(key, len(labels), size, labels != ABSENT)
    return images[rows], labels[rows]


def sample_augmented(key: PRNGKeyArray, data: Rows, *, size: int, affine: Affine) -> Rows:
    """A mini-batch of augmented images: `size` different rows of bytes, each transformed by a draw of its own."""
    row_key, augment_key = jax.random.split(key)
    images, labels = sample_rows(row_key, data, size=size)
    return augment(augment_key, images, affine), labels


def in_batches(rows: Shaped[Array, "rows ..."], num_classes: int, size: int) -> Shaped[Array, "batches batch_rows ..."]:
    """Rows of a task, all classes equally many, as batches of `size` rows of every class."""
    by_class = rows.reshape(num_classes, -1, size, *rows.shape[1:])
    return jnp.moveaxis(by_class, 1, 0).reshape(-1, num_classes * size, *rows.shape[1:])


def _split_drawings(
    images: Dataset, characters: Int[Array, "tasks classes"], num_support: int, num_query: int
) -> tuple[Rows, Rows]:
    num_drawings = images.shape[1]
    _check_drawings(num_drawings, num_support, num_query)
    first, last = np.arange(num_support), np.arange(num_drawings - num_query, num_drawings)
    support, query = (images[characters[:, :, None], drawings[None, None]] for drawings in (first, last))
    return _as_rows(support), _as_rows(query)


def _only_first(rows: Rows, num_drawings: int, num_present: Count | None) -> Rows:
    """Of the `num_drawings` of every class the first `num_present`."""
    if num_present is None:
        return rows
    images, labels = rows
    drawings = jnp.arange(labels.shape[1], dtype=jnp.int32) % num_drawings
    return images, jnp.where((drawings < num_present)[None], labels, ABSENT)


def _distinct(
    key: PRNGKeyArray, total: int, size: int, present: Bool[Array, " total"] | None = None
) -> Int[Array, " size"]:
    """`size` different numbers below `total`, in random order; only those that are `present`, if that is given."""
    scores = jax.random.uniform(key, (total,))
    # Much faster than `jax.random.choice`, which sorts all of them.
    return jax.lax.top_k(scores if present is None else jnp.where(present, scores, -1.0), size)[1]


def _check_drawings(num_drawings: int, num_support: int, num_query: int) -> None:
    if min(num_support, num_query) < 1 or num_support + num_query > num_drawings:
        raise ValueError(
            f"Each class has {num_drawings} images; {num_support} for the support set and {num_query} for the query "
            "set must be at least one each and not more in all."
        )


def _as_rows(images: Shaped[Array, "tasks classes drawings height width channels"]) -> Rows:
    tasks, classes, drawings = images.shape[:3]
    labels = jnp.repeat(jnp.arange(classes, dtype=jnp.int32), drawings)
    rows = images.reshape(tasks, classes * drawings, *images.shape[3:])
    return rows, jnp.broadcast_to(labels[None], rows.shape[:2])


def _turn(images: Shaped[Array, "drawings side side channels"], quarters: Int[Array, ""]) -> Array:
    turned = [lambda x, k=k: jnp.rot90(x, k, axes=(1, 2)) for k in range(4)]
    return jax.lax.switch(quarters, turned, images)
