"""The bank: one shared model and, for every task, only what changed."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from .._check import check_at_least, check_prior
from .._modules import Modules
from .._prior import Prior
from .._problem import Adapted
from .._select import Selection, module_names
from .._types import AnyTree, Params
from .base import Base, Index, read_index, write_base, write_index
from .create import new_folder
from .delta import ABOUT, POSTERIOR, Compression, check_compression
from .errors import BankError
from .export import check_free, write_checkpoint, write_program
from .posterior import AbstractPosterior, Structure, check_structure
from .record import check_shared, make_delta
from .serve import Server
from .store import FOLDER, Store
from .tree import rebuild
from .verify import Damage, check_same_base, verify

CACHE = 1024


class TaskInfo(NamedTuple):
    """How a task is stored: bytes of its arrays, `exact` or the compression, and the relative error of that."""

    size: int
    encoding: str
    error: float
    has_posterior: bool


@dataclass(frozen=True, eq=False)
class Bank:
    """A folder of adapted tasks: the shared model once, and for every task its task-specific modules only.

    Any number of processes may read and write at once; a process that dies while it writes leaves all other tasks
    as they were. Nothing in the files can execute. See the page "Bank" of the docs for the files.

    **Attributes:** `path`; `selected`, the names of the task-specific modules; `prior`, mean and variances.

    >>> import tempfile, jax.numpy as jnp, shrinx as sx
    >>> params = {"body": jnp.ones((2, 3)), "head": jnp.ones(3)}
    >>> prior = sx.Prior.create(params, variance={"body": 1e-5, "head": 2.0})
    >>> folder = tempfile.mkdtemp()
    >>> bank = sx.Bank.create(folder, prior, sx.select(prior, sx.TopK(1)))
    >>> bank.put("alice", {"body": jnp.ones((2, 3)), "head": jnp.full(3, 5.0)})
    >>> bank.put("bob", params)
    >>> bank = sx.Bank.open(folder)
    >>> bank.names(), bank.params("alice")["head"]
    (('alice', 'bob'), Array([5., 5., 5.], dtype=float32))
    >>> def apply(params, x):
    ...     return x @ params["body"] @ params["head"]
    >>> bank.predict(apply, ["alice", "bob", "alice"], jnp.ones((3, 2)))
    array([30.,  6., 30.], dtype=float32)
    >>> bank, "alice" in bank, len(bank), list(bank)  # doctest: +ELLIPSIS
    (Bank('...': 2 tasks of head), True, 2, ['alice', 'bob'])
    >>> bank.verify()
    ()
    """

    path: Path
    _base: Base = field(repr=False)
    _index: Index = field(repr=False)
    _treedef: Any = field(repr=False)
    _store: Store = field(repr=False)
    _server: Server = field(repr=False)

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        prior: Prior,
        selection: str | Iterable[str] | Selection,
        *,
        compression: Compression | None = None,
        posterior: Structure | None = None,
        model: dict[str, Any] | None = None,
        cache: int = CACHE,
    ) -> "Bank":
        """Make a bank in a new folder.

        **Arguments:**

        - `path`: a folder that does not exist yet, or is empty.
        - `prior`: the shared model with its variances.
        - `selection`: the task-specific modules: what [`select`][shrinx.select] gives, or their names.
        - `compression`: keep differences to the base as `"float16"`, `"bfloat16"` or `"int8"` instead of exact values.
        - `posterior`: also keep how sure every parameter is, `"diagonal"` or `"full"`; see [`laplace`][shrinx.laplace].
        - `model`: where the command line finds the loss; `shrinx bank create` fills it in.
        - `cache`: how many tasks `predict` keeps at hand.

        **Returns:** the bank, open.
        """
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`path` must be the name of a folder, got {type(path).__name__}.")
        path = Path(path)
        check_prior(prior)
        check_at_least("cache", cache, 1)
        check_compression(compression)
        selected = tuple(prior.modules.names[i] for i in prior.modules.indices(module_names(selection) or ()))
        part, _ = prior.restrict(selected)
        if posterior is not None:
            check_structure(posterior, part, 1.0)
        with new_folder(path) as folder:
            digest = write_base(folder, prior, selected)
            (folder / FOLDER).mkdir()
            write_index(folder, Index(digest, compression, posterior, model))
        return Bank.open(path, like=prior.mean, cache=cache)

    @staticmethod
    def open(path: str | os.PathLike[str], *, like: AnyTree | None = None, cache: int = CACHE) -> "Bank":
        """Open a bank. Reads its index and the header of the base; arrays follow when they are needed.

        **Arguments:**

        - `path`: its folder.
        - `like`: parameters of the same model, if these are not made of dictionaries, lists and tuples alone (an
          Equinox module, say). Only their structure is used.
        - `cache`: how many tasks `predict` keeps at hand.
        """
        path = Path(path)
        check_at_least("cache", cache, 1)
        index = read_index(path)
        base = Base.open(path)
        check_same_base(base, index, path)
        if like is not None:
            base.check_leaves(like, "parameters in `like`")
            treedef = jax.tree.structure(like)
        else:
            treedef = None if base.structure is None else rebuild(base.structure)
        store = Store(path, index.base)
        return Bank(path, base, index, treedef, store, Server(base, treedef, store, index.posterior, cache))

    @property
    def selected(self) -> tuple[str, ...]:
        return self._base.selected

    @property
    def compression(self) -> str | None:
        return self._index.compression

    @property
    def posterior(self) -> str | None:
        return self._index.posterior

    @property
    def model(self) -> dict[str, Any] | None:
        return self._index.model

    @property
    def prior(self) -> Prior:
        flat, treedef = self._base.prior, self._structure()
        rates = flat.rates if flat.rates is None or flat.has_module_rates else treedef.unflatten(flat.rates)
        modules = Modules(flat.modules.names, treedef, flat.modules._leaves)
        mean = treedef.unflatten(flat.mean)
        return Prior(mean=mean, log_variance=flat.log_variance, modules=modules, rates=rates)

    def __contains__(self, name: object) -> bool:
        return name in self._store

    def __len__(self) -> int:
        return len(self._listed())

    def __bool__(self) -> bool:
        """A bank, even without tasks: `bank or Bank.create(...)` must not make another."""
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __repr__(self) -> str:
        count, modules = len(self._store.names()), ", ".join(self.selected[:5])
        more = f" and {len(self.selected) - 5} more" if len(self.selected) > 5 else ""
        least = "at least " if self._store.unnamed() else ""
        return f"Bank({str(self.path)!r}: {least}{count:,} task{'s' * (count != 1)} of {modules}{more})"

    def names(self) -> tuple[str, ...]:
        """All tasks, sorted, damaged ones too. If tasks are missing since `unnamed` has some, a warning says so."""
        return self._listed()

    def unnamed(self) -> tuple[Damage, ...]:
        """Files that are so damaged that nobody can tell which tasks they hold; nothing if all is well."""
        return tuple(Damage(file, reason) for file, reason in self._store.unnamed().items())

    def put(
        self, name: str, params: Params, *, posterior: AbstractPosterior | None = None, strict: bool = True
    ) -> None:
        """Store a task, or store it anew. Atomic: whatever happens, there is the old version or the new one.

        **Arguments:**

        - `name`: any text of up to 1,000 characters.
        - `params`: all parameters of the adapted model; the task-specific modules are stored.
        - `posterior`: what [`laplace`][shrinx.laplace] gave for these parameters, if the bank keeps posteriors.
        - `strict`: refuse parameters that differ from the base elsewhere: the bank could not give them back. With
          `False` these differences are dropped.
        """
        if isinstance(params, Adapted):
            raise TypeError("`put` takes parameters: pass `adapted.params`.")
        leaves = self._base.check_leaves(params, f"parameters of {name!r}")
        if strict:
            check_shared(self._base, name, leaves)
        self.put_part(name, self._base.restriction.extract(tuple(leaves)), posterior)

    def put_part(
        self,
        name: str,
        part: Any,
        posterior: AbstractPosterior | None = None,
        about: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """`put` and `describe` in one, for the modules that `prior.restrict(bank.selected)` cuts out."""
        self._store.write(name, make_delta(self._base, self._index, name, part, posterior).about(about or {}))

    def params(self, name: str) -> Params:
        """All parameters of a task: the shared ones and its own."""
        return self._structure().unflatten(self._leaves(name))

    def info(self, name: str) -> TaskInfo:
        """How a task is stored."""
        delta = self._store.read(name)
        size = sum(array.nbytes for array in delta.tensors.values())
        return TaskInfo(size, delta.encoding, delta.error, POSTERIOR in delta.tensors)

    def describe(self, name: str, about: Mapping[str, Any]) -> None:
        """Keep numbers and arrays that say something about a task, in place of earlier ones; `put` drops them."""
        self._store.describe(name, about)

    def about(self, name: str) -> dict[str, np.ndarray]:
        """What `describe` was given for a task."""
        tensors = self._store.read(name).tensors
        return {key.removeprefix(ABOUT): array for key, array in tensors.items() if key.startswith(ABOUT)}

    def delete(self, name: str) -> None:
        """Remove a task for good."""
        self._store.delete(name)

    def rename(self, old: str, new: str) -> None:
        """Give a task another name, which must be free. Interrupted, it leaves the task under both."""
        self._store.rename(old, new)

    def pack(self) -> None:
        """Put all tasks into one file: smaller, and quicker to copy, where tasks have few parameters.

        Tasks stored afterwards are files of their own again until the next `pack`.
        """
        self._store.pack()

    def verify(self) -> tuple[Damage, ...]:
        """Read every file and name the damaged ones (`file`, `reason`, `tasks`); nothing if all is well."""
        return verify(self.path)

    def predict(
        self,
        apply: Callable[..., Any],
        names: Sequence[str],
        inputs: AnyTree,
        *,
        points: bool = False,
        uncertainty: bool = False,
    ) -> Any:
        """Outputs for a batch whose rows belong to different tasks, in one compiled call.

        Row i of the result is `apply(bank.params(names[i]), inputs[i:i+1])[0]`. Shared modules act on the whole batch
        at once, the others are gathered per row. Neither other tasks nor another number of them compile anything;
        batches are padded to a power of two, so that sizes up to 1,024 compile eleven times at most.

        **Arguments:**

        - `apply`: `apply(params, x)`, a function of a batch. Pass the same one every time; a new lambda is compiled
          anew.
        - `names`: one task per row, in any mix.
        - `inputs`: an array or a tree of arrays, `[rows, ...]`.
        - `points`: each row is a batch of its own, `[rows, points, ...]`, and row i of the result is
          `apply(bank.params(names[i]), inputs[i])`. This is what batch norm needs when it uses the statistics of the
          batch: they are those of the row, so of one task, and a single point has none.
        - `uncertainty`: also give the standard deviation of every output under the task's posterior, linearised
          around the adapted parameters. `apply` must return one array. The outputs of a classifier are its logits;
          under the posterior its probabilities are about `softmax(mean / sqrt(1 + pi/8 * deviation**2))`.

        **Returns:** the outputs as numpy arrays, or with `uncertainty` a `Prediction(mean, deviation)`.
        """
        self._structure()
        return self._server.predict(apply, names, inputs, points=points, uncertainty=uncertainty)

    def export(self, name: str, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write a task as a plain checkpoint: all parameters in one safetensors file, named by their paths."""
        check_free(Path(path), replace)
        write_checkpoint(Path(path), self._base.modules.paths, self._leaves(name), name)

    def export_predictor(
        self,
        apply: Callable[..., Any],
        inputs: AnyTree,
        path: str | os.PathLike[str],
        *,
        points: bool = False,
        replace: bool = False,
    ) -> None:
        """Write the model as a compiled program, `program(weights, inputs)`, by `jax.export`.

        `weights` are what `export` writes for any task, loaded as a dictionary; `inputs` is an example, `[rows, ...]`,
        of which the program takes any number of rows; `points` as in `predict`. Load it with
        `jax.export.deserialize(bytearray(content)).call`.
        """
        check_free(Path(path), replace)
        paths, mean = self._base.modules.paths, self._base.prior.mean
        write_program(Path(path), apply, self._structure(), paths, mean, inputs, points)

    def _listed(self) -> tuple[str, ...]:
        for damage in self.unnamed():
            warnings.warn(f"Tasks may be missing from the list: {damage.reason}", stacklevel=3)
        return self._store.names()

    def _structure(self) -> Any:
        if self._treedef is None:
            raise BankError(
                f"The parameters in {self.path} are kept in a class of their own: open the bank with "
                "`Bank.open(path, like=params)`, with parameters of the same model."
            )
        return self._treedef

    def _leaves(self, name: str) -> list[Any]:
        values = self._base.values(name, self._store.read(name))
        merged = self._base.restriction.merge(tuple(map(jax.numpy.asarray, values)), self._base.prior.mean)
        return list(merged)
