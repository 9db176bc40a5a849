"""One file per library, each written as its users would write it.

A file has `VERSION`, `device()` and `ALGORITHMS`: from an algorithm's name to a function that makes a `Case` into a
pass. A pass goes once through the batches of the case, carries on from where the pass before it stopped, and returns
the mean query loss of the adapted parameters for every batch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    title: str
    module: str
    environment: str
    algorithms: tuple[str, ...] = ("maml", "imaml", "reptile", "adapt", "serve")


LIBRARIES = {
    "shrinx": Library("shrinx", "with_shrinx", "shrinx"),
    "jax": Library("plain JAX", "with_jax", "shrinx"),
    "jaxopt": Library("jaxopt", "with_jaxopt", "jaxopt", ("maml", "imaml", "reptile", "adapt")),
    "torch-func": Library("torch.func, vmap", "with_torch_func", "torch"),
    "torchopt": Library("TorchOpt", "with_torchopt", "torch", ("maml", "imaml", "reptile", "adapt")),
    "higher": Library("higher", "with_higher", "torch", ("maml", "reptile", "adapt")),
}
"""`shrinx` first: the others are checked against it. higher has no implicit gradients, and
serving is no business of libraries that optimise."""
