"""Modules: which part of a network every parameter belongs to.

A partition is pure structure (names, paths and integer labels). It holds no arrays, is hashable, and rides along
as a static field, so that it never causes a retrace and never takes part in a derivative.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, keystr
from jaxtyping import Array, Float

from ._types import AnyTree, Params


def as_names(chosen: Any) -> tuple[str, ...]:
    """Names of modules in the form everything inside uses, from any form a caller may use but `None`."""
    if not isinstance(chosen, Iterable):
        raise TypeError(
            f"Names of modules or a `Selection` are needed, got {chosen!r}; a rule becomes one by "
            "`select(prior, rule)`."
        )
    return (chosen,) if isinstance(chosen, str) else tuple(chosen)


@dataclass(frozen=True)
class _Leaf:
    """One array of the tree: `labels` in the order of `grid`, which broadcasts against `shape`."""

    path: str
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def cell_size(self) -> int:
        return math.prod(self.shape) // math.prod(self.grid)

    @property
    def split_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis, length in enumerate(self.grid) if length > 1)


class Modules:
    """A partition of a tree of floating arrays into named modules.

    Make one with [`by_layer`][shrinx.by_layer], [`by_leaf`][shrinx.by_leaf], [`by_label`][shrinx.by_label] or
    [`by_axis`][shrinx.by_axis]. Two partitions are equal when they group the same tree in the same way.

    **Attributes:** `names` (one per module, in tree order), `sizes` (parameters per module), `paths` (one per leaf).

    >>> import jax.numpy as jnp, shrinx as sx
    >>> params = {"body": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": {"w": jnp.ones((3, 1))}}
    >>> modules = sx.by_layer(params)
    >>> modules.names, modules.sizes, len(modules)
    (('body', 'head'), (9, 3), 2)
    """

    names: tuple[str, ...]
    _treedef: Any
    _leaves: tuple[_Leaf, ...]

    def __init__(self, names: tuple[str, ...], treedef: Any, leaves: tuple[_Leaf, ...]):
        self.names = names
        self._treedef = treedef
        self._leaves = leaves
        self._hash = hash((names, treedef, leaves))
        empty = [name for name, size in zip(names, self.sizes, strict=True) if size == 0]
        if empty:
            raise ValueError(f"Modules {empty} have no parameters; every module needs at least one.")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        # Made anew where it is copied or unpickled, from a tree of that structure: hashes of strings differ from
        # process to process, and a copied structure may not equal its original (Equinox marks missing fields by an
        # object that is like no other).
        return _unpickled, (self.names, self._treedef.unflatten(range(self._treedef.num_leaves)), self._leaves)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Modules)
            and self._hash == other._hash
            and (self.names, self._leaves) == (other.names, other._leaves)
            and self._treedef == other._treedef
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return "Modules(" + ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.sizes, strict=True)) + ")"

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        sizes = np.zeros(len(self.names), dtype=np.int64)
        for leaf in self._leaves:
            np.add.at(sizes, np.asarray(leaf.labels, dtype=np.int64), leaf.cell_size)
        return tuple(int(size) for size in sizes)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(leaf.path for leaf in self._leaves)

    def indices(self, names: str | Iterable[str]) -> tuple[int, ...]:
        """Positions of `names` (one name, or several), without repeats and in module order."""
        wanted = as_names(names)
        unknown = [name for name in wanted if name not in self.names]
        if unknown:
            raise ValueError(f"Unknown modules {unknown}; known: {list(self.names)}.")
        return tuple(index for index, name in enumerate(self.names) if name in wanted)

    def check(self, tree: AnyTree, what: str = "params") -> None:
        """Raise a `ValueError` unless `tree` has the structure and shapes this partition was made for."""
        leaves, treedef = jax.tree.flatten(tree)
        if treedef != self._treedef:
            theirs = [path for path, _ in _named_leaves(tree)]
            raise ValueError(
                f"`{what}` does not match the modules: it has leaves {theirs}, the modules were made for "
                f"{list(self.paths)}{'' if set(theirs) != set(self.paths) else ' in containers of another kind'}."
            )
        for leaf, array in zip(self._leaves, leaves, strict=True):
            if jnp.shape(array) != leaf.shape:
                raise ValueError(
                    f"`{what}` does not match the modules: leaf '{leaf.path}' has shape {jnp.shape(array)}, "
                    f"the modules were made for {leaf.shape}."
                )

    def expand(self, values: Float[Array, " modules"]) -> Params:
        """Give every leaf its modules' values, in a shape that broadcasts against the leaf.

        >>> import jax.numpy as jnp, shrinx as sx
        >>> sx.by_leaf({"a": jnp.ones(2), "b": jnp.ones((2, 2))}).expand(jnp.array([5.0, 7.0]))
        {'a': Array([5.], dtype=float32), 'b': Array([[7.]], dtype=float32)}
        """
        # Indices out of range would not fail but be taken for the nearest.
        if jnp.shape(values) != (len(self),):
            raise ValueError(f"There are {len(self)} modules, but values of shape {list(jnp.shape(values))}.")
        return self._treedef.unflatten(
            [
                # Slicing by a Python integer keeps gathers out of the compiled inner loop in the common case.
                values[leaf.labels[0]].reshape(leaf.grid)
                if len(leaf.labels) == 1
                else values[np.asarray(leaf.labels, np.int32)].reshape(leaf.grid)
                for leaf in self._leaves
            ]
        )

    def sum(self, tree: Params) -> Float[Array, " modules"]:
        """Sum the entries of `tree` module by module.

        >>> import jax.numpy as jnp, shrinx as sx
        >>> params = {"a": jnp.ones(2), "b": jnp.ones((2, 2))}
        >>> sx.by_leaf(params).sum(params)
        Array([2., 4.], dtype=float32)
        """
        dtype = accumulation_dtype(tree)
        cells = []
        for leaf, array in zip(self._leaves, self._treedef.flatten_up_to(tree), strict=True):
            shared = tuple(axis for axis in range(len(leaf.grid)) if axis not in leaf.split_axes)
            cells.append(jnp.sum(array.astype(dtype), axis=shared).reshape(-1))
        labels = np.concatenate([np.asarray(leaf.labels, np.int32) for leaf in self._leaves])
        return jax.ops.segment_sum(jnp.concatenate(cells), labels, len(self))

    def restrict(self, names: str | Iterable[str]) -> "Restriction":
        """The part of a tree that belongs to the modules `names`, as a smaller problem of its own."""
        return Restriction(self, self.indices(names))


def _unpickled(names: tuple[str, ...], tree: AnyTree, leaves: tuple[_Leaf, ...]) -> Modules:
    return Modules(names, jax.tree.structure(tree), leaves)


class Restriction:
    """Cuts the chosen modules out of a tree (`extract`) and puts new values back (`merge`).

    Leaves outside the chosen modules do not occur in the extracted tree at all: whoever differentiates with respect
    to it computes, stores and updates nothing for them. A leaf that is chosen in part (see `by_axis`) is cut.
    """

    def __init__(self, modules: Modules, indices: tuple[int, ...]):
        if not indices:
            raise ValueError(f"At least one module must be chosen; known: {list(modules.names)}.")
        self.modules = modules
        self.indices = indices
        renumber = {old: new for new, old in enumerate(indices)}
        rows = [tuple(row for row, label in enumerate(leaf.labels) if label in renumber) for leaf in modules._leaves]
        # A tuple of (position of the leaf, rows to take or None for the whole leaf).
        self._cuts = tuple(
            (position, None if len(chosen) == len(leaf.labels) else np.asarray(chosen, np.int32))
            for position, (leaf, chosen) in enumerate(zip(modules._leaves, rows, strict=True))
            if chosen
        )
        leaves = []
        for position, chosen in self._cuts:
            leaf = modules._leaves[position]
            labels = tuple(renumber[leaf.labels[row]] for row in rows[position])
            if chosen is None:
                leaves.append(_Leaf(leaf.path, leaf.shape, leaf.grid, labels))
            else:
                rest = _rows_first_shape(leaf)[1:]
                leaves.append(_Leaf(leaf.path, (len(chosen), *rest), (len(chosen),) + (1,) * len(rest), labels))
        names = tuple(modules.names[index] for index in indices)
        self.part = Modules(names, jax.tree.structure((0,) * len(leaves)), tuple(leaves))

    def extract(self, tree: Params) -> Params:
        arrays = self.modules._treedef.flatten_up_to(tree)
        part = []
        for position, chosen in self._cuts:
            array = arrays[position]
            part.append(array if chosen is None else _rows_first(self.modules._leaves[position], array)[chosen])
        return tuple(part)

    def merge(self, part: Params, tree: Params) -> Params:
        arrays = list(self.modules._treedef.flatten_up_to(tree))
        for (position, chosen), value in zip(self._cuts, part, strict=True):
            leaf = self.modules._leaves[position]
            if chosen is None:
                arrays[position] = value
            else:
                arrays[position] = _rows_back(leaf, _rows_first(leaf, arrays[position]).at[chosen].set(value))
        return self.modules._treedef.unflatten(arrays)


def _rows_first_shape(leaf: _Leaf) -> tuple[int, ...]:
    rest = (length for axis, length in enumerate(leaf.shape) if axis not in leaf.split_axes)
    return (len(leaf.labels), *rest)


def _rows_first(leaf: _Leaf, array: Array) -> Array:
    front = tuple(range(len(leaf.split_axes)))
    return jnp.moveaxis(array, leaf.split_axes, front).reshape(_rows_first_shape(leaf))


def _rows_back(leaf: _Leaf, array: Array) -> Array:
    front = tuple(range(len(leaf.split_axes)))
    split = tuple(leaf.shape[axis] for axis in leaf.split_axes)
    return jnp.moveaxis(array.reshape(split + array.shape[1:]), front, leaf.split_axes)


def by_layer(params: AnyTree) -> Modules:
    """One module per layer: leaves with the same parent path belong together (a layer's weights and bias).

    A leaf that sits at the root of the tree has no parent and becomes a module of its own. Dots in keys part a path
    like slashes do, as in the names of a PyTorch `state_dict`.

    **Arguments:** `params`, any pytree of floating arrays: what [`from_equinox`][shrinx.from_equinox] and the other
    bridges give, or plain dictionaries.

    **Returns:** the partition, modules named by their path.

    >>> import equinox as eqx, jax, shrinx as sx
    >>> mlp = eqx.nn.MLP(1, 1, width_size=40, depth=2, key=jax.random.key(0))
    >>> sx.by_layer(eqx.partition(mlp, eqx.is_inexact_array)[0]).names
    ('layers/0', 'layers/1', 'layers/2')
    """
    return by_label(params, _layer)


def by_leaf(params: AnyTree) -> Modules:
    """One module per array: weights and biases of a layer apart, as in the paper's sinusoid experiment.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> sx.by_leaf({"layer": {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}}).names
    ('layer/b', 'layer/w')
    """
    return by_label(params, lambda path: path)


def by_label(params: AnyTree, label: Callable[[str], str] | Mapping[str, str]) -> Modules:
    """Group leaves by what you call them.

    **Arguments:**

    - `params`: a pytree of floating arrays.
    - `label`: either a function from a leaf's path (such as `"layers/0/weight"`) to the name of its module, or a
      mapping from module names to regular expressions searched for in the path; the first match counts.

    **Returns:** the partition. Leaves that no expression matches, and expressions that match no leaf, are errors.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> params = {"conv0": jnp.ones(3), "conv1": jnp.ones(3), "output": jnp.ones(2)}
    >>> sx.by_label(params, {"body": "^conv", "head": "output"}).sizes
    (6, 2)
    >>> sx.by_label(params, lambda path: path.rstrip("01")).names
    ('conv', 'output')
    """
    named = _checked_leaves(params)
    if not isinstance(label, Mapping) and not callable(label):
        raise TypeError(f"`label` must be a function of the path or a mapping of names to patterns, got {label!r}.")
    name_of = _matcher(label, [path for path, _ in named]) if isinstance(label, Mapping) else label
    names = [name_of(path) for path, _ in named]
    for (path, _), name in zip(named, names, strict=True):
        if not isinstance(name, str):
            raise TypeError(f"`label` must give every leaf the name of a module, but '{path}' got {name!r}.")
    grids = [
        (path, array.shape, (1,) * len(array.shape), [name]) for (path, array), name in zip(named, names, strict=True)
    ]
    return _build(params, grids)


def by_axis(params: AnyTree, axes: Mapping[str, int | tuple[int, ...]], *, groups: int | None = None) -> Modules:
    """Modules finer than a leaf: one per attention head, output channel or position of a kernel.

    **Arguments:**

    - `params`: a pytree of floating arrays.
    - `axes`: from a regular expression, searched for in leaf paths, to the axis (or axes) along which those leaves
      are split. Leaves of one layer share the modules, so a channel keeps its weights and its bias together. Leaves
      that nothing matches stay whole, grouped by layer.
    - `groups`: how many contiguous groups to cut an axis into (the number of heads, say); one per index by default.

    **Returns:** the partition, modules named `layer[0]`, `layer[1]`, …

    >>> import jax.numpy as jnp, shrinx as sx
    >>> params = {"conv": {"b": jnp.ones(2), "w": jnp.ones((2, 3, 3))}, "out": {"w": jnp.ones((1, 2))}}
    >>> sx.by_axis(params, {"conv": 0})
    Modules(conv[0]: 10, conv[1]: 10, out: 2)
    """
    named = _checked_leaves(params)
    if not isinstance(axes, Mapping):
        raise TypeError(f"`axes` must be a mapping from patterns to axes, such as {{'conv': 0}}, got {axes!r}.")
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int | np.integer)):
        raise TypeError(f"`groups` must be an integer, got {groups!r}.")
    patterns = list(axes)
    matched = _matcher({pattern: pattern for pattern in patterns}, [path for path, _ in named], whole=False)
    counts: dict[str, tuple[int, str]] = {}
    grids = []
    for path, array in named:
        layer, shape = _layer(path), tuple(array.shape)
        pattern = matched(path)
        if pattern is None:
            grids.append((path, shape, (1,) * len(shape), [layer]))
            continue
        axis = axes[pattern]
        split = _normalise_axes(path, shape, axis if isinstance(axis, tuple | list) else (axis,))
        cells = math.prod(shape[a] for a in split)
        if groups is None and counts.setdefault(layer, (cells, path))[0] != cells:
            other = counts[layer]
            raise ValueError(
                f"Leaves '{other[1]}' and '{path}' of one layer would be split into {other[0]} and {cells} modules; "
                "give each its own pattern and axis, or cut both into as many `groups`."
            )
        if not cells:
            raise ValueError(f"Leaf '{path}' of shape {shape} is empty; there is nothing to split along axis {axis}.")
        if groups is not None and (groups < 1 or cells % groups):
            raise ValueError(f"Cannot cut the {cells} indices of leaf '{path}' along axis {axis} into {groups} groups.")
        per_group = 1 if groups is None else cells // groups
        grid = tuple(length if a in split else 1 for a, length in enumerate(shape))
        grids.append((path, shape, grid, [f"{layer}[{cell // per_group}]" for cell in range(cells)]))
    return _build(params, grids)


def accumulation_dtype(tree: Params) -> np.dtype:
    """What sums over parameters are kept in: float64 if any of them is, otherwise float32."""
    wide = any(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(tree))
    return np.dtype(np.float64 if wide else np.float32)


def _build(params: AnyTree, grids: list[tuple[str, tuple[int, ...], tuple[int, ...], list[str]]]) -> Modules:
    names: dict[str, int] = {}
    leaves = tuple(
        _Leaf(path, tuple(shape), grid, tuple(names.setdefault(name, len(names)) for name in cells))
        for path, shape, grid, cells in grids
    )
    return Modules(tuple(names), jax.tree.structure(params), leaves)


def _matcher(patterns: Mapping[str, str], paths: list[str], *, whole: bool = True) -> Callable[[str], Any]:
    compiled = {name: re.compile(pattern) for name, pattern in patterns.items()}

    def first_match(path: str) -> str | None:
        return next((name for name, pattern in compiled.items() if pattern.search(path)), None)

    found = [first_match(path) for path in paths]
    idle = [name for name in patterns if name not in found]
    missed = [path for path, name in zip(paths, found, strict=True) if name is None]
    if idle:
        raise ValueError(f"Patterns {[patterns[name] for name in idle]} match no leaf of their own; leaves: {paths}.")
    if whole and missed:
        raise ValueError(f"No pattern matches leaves {missed}; patterns: {list(patterns.values())}.")
    return first_match


def _layer(path: str) -> str:
    """The path without its last part. PyTorch's names have dots for slashes: `layers.0.weight`."""
    return re.sub(r"[./][^./]*$", "", path) or path


def _normalise_axes(path: str, shape: tuple[int, ...], axes: Sequence[Any]) -> tuple[int, ...]:
    for axis in axes:
        if not isinstance(axis, int | np.integer):
            raise TypeError(f"The axes of leaf '{path}' must be integers, got {axis!r}.")
        if not -len(shape) <= axis < len(shape):
            raise ValueError(f"Leaf '{path}' of shape {shape} has no axis {axis}.")
    return tuple(sorted({axis % len(shape) for axis in axes}))


def _named_leaves(tree: AnyTree, alone: str = "params") -> list[tuple[str, Any]]:
    """Leaves by their paths; an array that is all there is has none, and is called `alone`."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    keys = [key for key, _ in flat]
    # Flax nnx boxes every array in an object with the one attribute `value`, which is no part of the network.
    if keys and all(key and isinstance(key[-1], GetAttrKey) and key[-1].name == "value" for key in keys):
        keys = [key[:-1] for key in keys]
    return [(keystr(key, simple=True, separator="/") or alone, leaf) for key, (_, leaf) in zip(keys, flat, strict=True)]


def _checked_leaves(params: AnyTree) -> list[tuple[str, Any]]:
    named = _named_leaves(params)
    if not named:
        raise ValueError("There are no parameters to split into modules: the tree has no leaves.")
    paths = [path for path, _ in named]
    if len(set(paths)) < len(paths):
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise ValueError(f"Several leaves have the same path {twice}; rename one of their keys.")
    for path, leaf in named:
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            what = f"is a {type(leaf).__name__}"
        elif not jnp.issubdtype(leaf.dtype, jnp.floating):
            what = f"has dtype {leaf.dtype}"
        else:
            continue
        raise TypeError(
            f"Parameters must be floating arrays, but leaf '{path}' {what}; keep it out of the tree, for example by "
            "`eqx.partition(model, eqx.is_inexact_array)`."
        )
    return named
