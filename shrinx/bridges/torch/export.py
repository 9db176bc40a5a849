"""A module's graph, exported by PyTorch and taken apart into the operators of the table."""

import functools
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any
from unittest import mock

from .operators import Operators, find_operator
from .weights import import_torch

# What PyTorch takes apart only when told to.
_TAKEN_APART = ("grid_sampler_2d", "upsample_bilinear2d", "upsample_nearest2d")


class RefusedError(ValueError):
    """PyTorch would export it, but something would be lost."""


def export(
    module: Any, weights: Mapping[str, Any], inputs: tuple, named: Mapping[str, Any], operators: Operators
) -> Any:
    """The program of `module` for inputs of these shapes, with its weights as inputs, functional and in `operators`."""
    torch = import_torch()

    class WithWeights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, weights: Any, inputs: Any, named: Any) -> Any:
            before = dict(module.named_buffers())
            outputs = torch.func.functional_call(module, weights, inputs, named)
            _refuse_to_forget(module, [name for name, now in module.named_buffers() if now is not before.get(name)])
            return outputs

    with _quiet(), _plain_operators():
        program = torch.export.export(WithWeights(), (dict(weights), inputs, dict(named)), strict=False)
        _mark_stopped_gradients(program)
        program = program.run_decompositions(_decompositions(operators))
    _check_buffers(program, module)
    _check_weights(program, module, weights)
    return program


def _check_buffers(program: Any, module: Any) -> None:
    """Running statistics of norms may stay behind; whatever else a module remembers would silently be forgotten."""
    batch_norm = import_torch().nn.modules.batchnorm._NormBase
    norms = {name for name, part in module.named_modules() if isinstance(part, batch_norm)}
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "BUFFER_MUTATION"]
    written = [own_name(spec) for spec in specs]
    _refuse_to_forget(module, [name for name in written if name.rpartition(".")[0] not in norms])


def _refuse_to_forget(module: Any, buffers: Sequence[str]) -> None:
    if buffers:
        raise RefusedError(
            f"{type(module).__name__} writes into its buffers {list(buffers)} at every call, which a pure function "
            "cannot; call `module.eval()` if that stops it, or take the update out of `forward`."
        )


def _check_weights(program: Any, module: Any, weights: Mapping[str, Any]) -> None:
    """A tensor that also sits where no name leads to it is a constant to PyTorch."""
    places = {weight.data_ptr(): name for name, weight in module.named_parameters() if name in weights}
    for constant in program.constants.values():
        if constant.data_ptr() in places:
            raise RefusedError(
                f"The module keeps parameter '{places[constant.data_ptr()]}' in a second place, where it cannot be "
                "replaced; let `forward` read it from its attribute."
            )


def own_name(spec: Any) -> str:
    """The name of a parameter or buffer within the module, which the graph knows as a part of `WithWeights`."""
    return (spec.target or "").removeprefix("module.")


def _decompositions(operators: Operators) -> Any:
    torch = import_torch()
    table = torch.export.default_decompositions()
    table.update(torch._decomp.get_decompositions([getattr(torch.ops.aten, name) for name in _TAKEN_APART]))
    for known in [op for op in table if find_operator(operators, str(op))]:
        del table[known]
    return table


@contextmanager
def _quiet() -> Iterator[None]:
    """What PyTorch warns of, logs and prints here is about its own insides; errors are raised all the same."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def _plain_operators() -> Iterator[None]:
    """No fused attention, which is opaque, and no `autograd.Function`, whose derivative PyTorch would forget."""
    torch = import_torch()

    def refuse(*_: Any, **__: Any) -> None:
        raise RefusedError(
            "The module calls a `torch.autograd.Function`, whose `backward` JAX would not see; write it with operators "
            "alone, `x + (f(x) - x).detach()` for a straight-through gradient."
        )

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mock.patch.object(torch.autograd.Function, "apply", refuse):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@functools.cache
def _stop_gradient() -> Any:
    """An operator of our own, because PyTorch forgets `detach` and `no_grad` when it takes a graph apart."""
    torch = import_torch()

    schema = "(Tensor x) -> Tensor"
    define = torch.library.custom_op("shrinx::stop_gradient", torch.clone, mutates_args=(), schema=schema)
    define.register_fake(torch.empty_like)
    return torch.ops.shrinx.stop_gradient.default


def _mark_stopped_gradients(program: Any) -> None:
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        name = str(node.target)
        if name in ("aten.detach.default", "aten.detach_.default"):
            if any(_writes_into(user, node) for user in node.users):
                raise RefusedError(
                    "The module writes in place into a detached tensor; let it make a copy: `x.detach().clone()`."
                )
            node.target = _stop_gradient()
        elif name == "wrap_with_set_grad_enabled" and node.args[0] is False:
            for output in list(node.users):
                with graph.inserting_after(output):
                    stopped = graph.call_function(_stop_gradient(), (output,))
                stopped.meta = dict(output.meta)
                output.replace_all_uses_with(stopped, delete_user_cb=lambda user, own=stopped: user is not own)
    program.graph_module.recompile()


def _writes_into(user: Any, node: Any) -> bool:
    schema = getattr(user.target, "_schema", None)
    return schema is not None and schema.is_mutable and user.args[0] is node
