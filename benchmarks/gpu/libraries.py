"""What is measured. A library's file has `VERSION`, `device()`, `peak_mb()` and `prepare(job, case, variant)`.

`prepare` returns two numbers by which libraries are compared, and a function that takes `job.steps` steps and waits for
them: loss before and after a step, or loss and the length of the gradient or product.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """How PyTorch runs the step."""

    compiled: bool = False
    graph: bool = False
    """All steps are recorded once as a CUDA graph and then replayed."""
    patches: bool = False
    """Convolutions are products of matrices, as in shrinx, instead of PyTorch's, which become grouped ones."""


@dataclass(frozen=True)
class Library:
    title: str
    module: str
    variant: Variant = Variant()


LIBRARIES = {
    "shrinx": Library("shrinx", "with_shrinx"),
    "torch-eager": Library("torch.func, vmap", "with_torch"),
    "torch-graphs": Library("… as a CUDA graph", "with_torch", Variant(graph=True)),
    "torch-compile": Library("… by torch.compile", "with_torch", Variant(compiled=True)),
    "torch-compile-graphs": Library("… by torch.compile, as a CUDA graph", "with_torch", Variant(True, True)),
    "torch-patches": Library("… and with products of matrices", "with_torch", Variant(True, True, True)),
}
"""`shrinx` first: the others are checked against it."""
