"""Packing: arrays of one shape as one array, so that a deep network compiles like a shallow one.

Everything that adaptation does to parameters it does leaf by leaf, several times over when it is differentiated. A
network of thirty equal blocks has hundreds of leaves in a handful of shapes; packed, it has a handful of leaves.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._check import check_prior
from ._modules import Modules, _Leaf
from ._prior import Prior
from ._types import Data, LossFn, Params, Scalar


class Packing:
    """How the leaves of a prior's parameters are packed. Names, order and variances of the modules stay as they are.

    Adapt, or learn, with `pack_prior(prior)` and `loss_fn(loss_fn)` in place of the network's own; the results are the
    same, and `unpack` and `unpack_prior` give them back.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({f"layer{i}": {"w": jnp.eye(2)} for i in range(30)})
    >>> packing = sx.Packing(prior)
    >>> packed = packing.pack_prior(prior)
    >>> len(packed.modules), [leaf.shape for leaf in jax.tree.leaves(packed.mean)]
    (30, [(30, 2, 2)])
    >>> network = lambda params, x: jnp.sum(sum(params[f"layer{i}"]["w"] @ x for i in range(30)))
    >>> adapted = sx.adapt(packing.loss_fn(network), packed, jnp.ones(2), sx.ProximalGD(0.1), num_steps=5)
    >>> packing.unpack(adapted.params)["layer0"]["w"].shape
    (2, 2)
    """

    def __init__(self, prior: Prior):
        check_prior(prior)
        self._modules = prior.modules
        groups: dict[Any, list[int]] = {}
        for index, (leaf, array) in enumerate(zip(prior.modules._leaves, jax.tree.leaves(prior.mean), strict=True)):
            groups.setdefault((leaf.shape, leaf.grid, array.dtype), []).append(index)
        self._groups = tuple(tuple(group) for group in groups.values())
        leaves = tuple(self._packed_leaf([prior.modules._leaves[index] for index in group]) for group in self._groups)
        self.modules = Modules(prior.modules.names, jax.tree.structure((0,) * len(leaves)), leaves)

    @staticmethod
    def _packed_leaf(leaves: list[_Leaf]) -> _Leaf:
        count, first = len(leaves), leaves[0]
        labels = tuple(label for leaf in leaves for label in leaf.labels)
        path = first.path if count == 1 else f"{first.path} and {count - 1} like it"
        return _Leaf(path, (count, *first.shape), (count, *first.grid), labels)

    def pack(self, params: Params) -> tuple[Array, ...]:
        """One array for each shape, its leaves along the first axis."""
        self._modules.check(params)
        leaves = self._modules._treedef.flatten_up_to(params)
        return tuple(jnp.stack([leaves[index] for index in group]) for group in self._groups)

    def unpack(self, packed: Params) -> Params:
        """The parameters as the network has them; of a batch of tasks by `jax.vmap(packing.unpack)`."""
        self.modules.check(packed, "packed")  # A batch of them, of as many tasks as layers, would be mixed up.
        leaves: list[Array | None] = [None] * len(self._modules._leaves)
        for group, array in zip(self._groups, packed, strict=True):
            # Unlike indexing, whose derivative is a sum of arrays that are zero but for one row.
            for index, part in zip(group, jax.lax.split(array, (1,) * len(group)), strict=True):
                leaves[index] = part.reshape(part.shape[1:])
        return self._modules._treedef.unflatten(leaves)

    def pack_prior(self, prior: Prior) -> Prior:
        check_prior(prior)
        _check_same(prior.modules, self._modules)
        return Prior(self.pack(prior.mean), prior.log_variance, self.modules, self._rates(prior, self.pack))

    def unpack_prior(self, packed: Prior) -> Prior:
        _check_same(packed.modules, self.modules)
        return Prior(self.unpack(packed.mean), packed.log_variance, self._modules, self._rates(packed, self.unpack))

    def loss_fn(self, loss_fn: LossFn) -> LossFn:
        """The same loss, of packed parameters."""
        return _PackedLoss(self, loss_fn)

    @staticmethod
    def _rates(prior: Prior, change: Any) -> Params | None:
        """Rates of parameters are packed like them; rates of modules stay."""
        return prior.rates if prior.rates is None or prior.has_module_rates else change(prior.rates)


class _PackedLoss(eqx.Module):
    """An object, not a closure: two of the same loss are the same to `jit`."""

    packing: Packing = eqx.field(static=True)
    loss_fn: LossFn

    def __call__(self, packed: Params, data: Data) -> Scalar:
        return self.loss_fn(self.packing.unpack(packed), data)


def _check_same(theirs: Modules, ours: Modules) -> None:
    if theirs != ours:
        raise ValueError(f"The prior has {theirs}, this packing was made for {ours}.")
