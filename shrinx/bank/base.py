"""What all tasks of a bank share: `base.safetensors` (model, prior, modules) and `index.json` (how tasks are kept).

The base holds the prior's mean as `mean/<path>`, the log-variances, the learned rates if there are any, and in its
metadata the partition into modules, the tree's containers and the task-specific modules. Its digest covers all of
these; every task names the digest of the base it was adapted from.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._modules import Modules, Restriction, _Leaf, _named_leaves
from .._prior import Prior
from .._types import AnyTree
from ..runs.files import write_text
from .delta import Compression, Delta, Part, decode
from .errors import BankError, DamagedError
from .safetensors import DTYPES, TensorFile, write_tensors
from .tree import describe, rebuild

FORMAT = "shrinx-bank-1"
BASE = "base.safetensors"
INDEX = "index.json"


@dataclass(frozen=True, eq=False)
class Base:
    """The shared model, opened. Trees are flat here: one array per leaf, in the order of `modules.paths`."""

    file: TensorFile
    modules: Modules
    selected: tuple[str, ...]
    structure: Any
    """The tree's containers as `describe` puts them; `None` if only their owner can make them."""

    @staticmethod
    def open(path: Path) -> "Base":
        try:
            file = TensorFile.open(path / BASE, mapped=True)
        except FileNotFoundError:
            raise BankError(f"{path / BASE} is missing; without it the tasks of the bank cannot be read.") from None
        try:
            leaves = [
                _Leaf(leaf["path"], tuple(leaf["shape"]), tuple(leaf["grid"]), tuple(leaf["labels"]))
                for leaf in json.loads(file.metadata["leaves"])
            ]
            modules = _flat(json.loads(file.metadata["modules"]), leaves)
            base = Base(
                file, modules, tuple(json.loads(file.metadata["selected"])), json.loads(file.metadata["structure"])
            )
            base.restriction  # noqa: B018 - Fails here, not later, if the names are none of the modules'.
            if base.structure is not None:
                rebuild(base.structure)
            return base
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DamagedError(f"{file.path} is damaged: it does not describe a model ({error!r:.200}).") from error

    @functools.cached_property
    def restriction(self) -> Restriction:
        return self.modules.restrict(self.selected)

    @functools.cached_property
    def prior(self) -> Prior:
        """The prior of all modules. The file is read and checked when it is first asked for."""
        self.file.check()
        names = self.file.entries
        if jnp.result_type(float) != np.float64 and any(entry["dtype"] == "F64" for entry in names.values()):
            raise BankError(
                f"{self.file.path} has parameters of float64: call jax.config.update('jax_enable_x64', True) first."
            )
        rates = None
        if "rates" in names:
            rates = jnp.asarray(self.file.array("rates"))
        elif any(name.startswith("rates/") for name in names):
            rates = self._leaves("rates")
        log_variance = jnp.asarray(self.file.array("log_variance"))
        return Prior(mean=self._leaves("mean"), log_variance=log_variance, modules=self.modules, rates=rates)

    @functools.cached_property
    def part(self) -> Part:
        """The task-specific modules as the base has them."""
        return tuple(np.asarray(array) for array in self.restriction.extract(self.prior.mean))

    def check_leaves(self, tree: AnyTree, what: str) -> list[Any]:
        """The leaves of a tree, which must have the paths, shapes and dtypes of the base."""
        named = dict(_named_leaves(tree))
        if tuple(named) != self.modules.paths:
            raise BankError(f"The {what} have leaves {list(named)}, the base has {list(self.modules.paths)}.")
        for path, leaf in named.items():
            entry = self.file.entries[f"mean/{path}"]
            expected = (tuple(entry["shape"]), DTYPES[entry["dtype"]])
            found = (jnp.shape(leaf), np.dtype(jnp.result_type(leaf)))
            if found != expected:
                raise BankError(
                    f"The {what} have a leaf '{path}' of shape {found[0]} and dtype {found[1]}, the base one of shape "
                    f"{expected[0]} and dtype {expected[1]}."
                )
        return list(named.values())

    def values(self, name: str, delta: Delta) -> Part:
        """The task-specific modules of the task `name`, stored as `delta`."""
        try:
            return decode(self.restriction.part.paths, delta, self.part)
        except DamagedError:
            raise  # It says itself which file it is.
        except (BankError, KeyError) as error:
            raise DamagedError(
                f"Task {name!r} does not fit the modules of the bank: {str(error).rstrip('.')}."
            ) from error

    def _leaves(self, prefix: str) -> tuple[jax.Array, ...]:
        return tuple(jnp.asarray(self.file.array(f"{prefix}/{path}")) for path in self.modules.paths)


def write_base(folder: Path, prior: Prior, selected: tuple[str, ...]) -> str:
    """Write `base.safetensors` and return its digest."""
    paths = prior.modules.paths
    tensors = {f"mean/{path}": leaf for path, leaf in zip(paths, jax.tree.leaves(prior.mean), strict=True)}
    tensors["log_variance"] = prior.log_variance
    if prior.rates is not None:
        rates = jax.tree.leaves(prior.rates)
        tensors |= {"rates": rates[0]} if prior.has_module_rates else _named("rates", paths, rates)
    metadata = {
        "format": FORMAT,
        "modules": json.dumps(prior.modules.names),
        "leaves": json.dumps([vars(leaf) for leaf in prior.modules._leaves]),
        "selected": json.dumps(selected),
        "structure": json.dumps(describe(prior.mean)),
    }
    return write_tensors(folder / BASE, {name: np.asarray(array) for name, array in tensors.items()}, metadata)


@dataclass(frozen=True)
class Index:
    """How the tasks of a bank are kept."""

    base: str
    compression: Compression | None
    posterior: str | None
    model: dict[str, Any] | None
    """Where the command line finds the loss: the experiment of a run and its configuration."""


def write_index(folder: Path, index: Index) -> None:
    write_text(folder / INDEX, _index_text(index))


def read_index(folder: Path) -> Index:
    path = folder / INDEX
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        make = "`shrinx bank create` or `Bank.create`"
        raise BankError(f"There is no bank in {folder} ({INDEX} is missing); make one with {make}.") from None
    except NotADirectoryError:
        raise BankError(f"{folder} is a file; a bank is a folder.") from None
    try:
        fields = json.loads(text)
        if fields.pop("format") != FORMAT:
            raise BankError(f"{path} was written by another version of shrinx; this one reads {FORMAT}.")
        fields.pop("digest")
        index = Index(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, BankError):
            raise
        raise DamagedError(f"{path} is damaged: it cannot be read ({error!r:.200}).") from error
    if _index_text(index).encode() != text:
        raise DamagedError(f"{path} is damaged: its content does not match its digest.")
    return index


def _index_text(index: Index) -> str:
    fields = {"format": FORMAT, **vars(index)}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    return json.dumps({**fields, "digest": digest}, indent=2) + "\n"


def _flat(names: list[str], leaves: list[_Leaf]) -> Modules:
    return Modules(tuple(names), jax.tree.structure((0,) * len(leaves)), tuple(leaves))


def _named(prefix: str, paths: tuple[str, ...], leaves: list[jax.Array]) -> dict[str, jax.Array]:
    return {f"{prefix}/{path}": leaf for path, leaf in zip(paths, leaves, strict=True)}
