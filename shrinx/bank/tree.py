"""The containers of a parameter tree as JSON: dictionaries, lists, tuples and `None`; nothing that needs code."""

from typing import Any

import jax

from .._types import AnyTree


def describe(tree: AnyTree) -> Any:
    """A description that `rebuild` understands, or `None` if the tree has containers of other kinds.

    >>> describe({"layers": [1.0, (2.0, None)]})
    {'dict': [['layers', {'list': ['leaf', {'tuple': ['leaf', 'none']}]}]]}
    """
    try:
        return _describe(tree)
    except _Foreign:
        return None


def rebuild(description: Any) -> Any:
    """The tree structure that was described.

    >>> rebuild({"dict": [["layers", {"list": ["leaf", {"tuple": ["leaf", "none"]}]}]]})
    PyTreeDef({'layers': [*, (*, None)]})
    """
    return jax.tree.structure(_rebuild(description))


class _Foreign(Exception):
    pass


def _describe(tree: Any) -> Any:
    if tree is None:
        return "none"
    if type(tree) is dict and all(type(key) in (str, int) for key in tree):
        return {"dict": [[key, _describe(value)] for key, value in tree.items()]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_describe(value) for value in tree]}
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(tree)):
        return "leaf"
    raise _Foreign


def _rebuild(description: Any) -> Any:
    if description == "none":
        return None
    if description == "leaf":
        return 0
    [(kind, members)] = description.items()
    if kind == "dict":
        return {key: _rebuild(value) for key, value in members}
    return {"list": list, "tuple": tuple}[kind](map(_rebuild, members))
