"""A chunk of training must leave the types that it found: else the next one is compiled anew, weak types included."""

import jax

from shrinx.runs import stages


def train_in_chunks(folder, state, advance, **options):
    """That of `shrinx.runs.stages`, and every chunk is looked at."""

    def checked(state, step, length):
        after, *rest = advance(state, step, length)
        assert _types(after) == _types(state)
        return after, *rest

    return stages.train_in_chunks(folder, state, checked, **options)


def _types(state):
    return [(path, leaf.dtype, leaf.weak_type) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
