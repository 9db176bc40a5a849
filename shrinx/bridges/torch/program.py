"""An exported program, run by JAX."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .export import RefusedError, export, own_name
from .operators import Operators, find_operator
from .signature import Signature
from .weights import import_torch, shallow_copy, to_array, to_jax_dtype

# Where and how a tensor lies in memory is nobody's business here.
PLACEMENT = ("device", "layout", "memory_format", "non_blocking", "pin_memory")


@dataclass(frozen=True)
class Program:
    """The graph of a module for one signature, and what else is constant in it."""

    exported: Any
    operators: Operators
    constants: Mapping[str, Array]

    def __call__(self, given: Iterable[Any]) -> Any:
        """The outputs, in the structure the module returns them in, for its weights and inputs in a row."""
        signature, given = self.exported.graph_signature, iter(given)
        # Types and shapes are made to agree by PyTorch's rules, whatever the caller allows JAX to do.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            values = {
                spec.arg.name: next(given) if spec.kind.name == "USER_INPUT" else self.constants.get(spec.arg.name)
                for spec in signature.input_specs
            }
            outputs = _run(self.exported.graph, self.operators, values)
        kept = [
            value
            for value, spec in zip(outputs, signature.output_specs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]
        return import_torch().utils._pytree.tree_unflatten(kept, self.exported.call_spec.out_spec)


def make_program(
    module: Any, names: Sequence[str], constants: Mapping[str, Array], signature: Signature, operators: Operators
) -> Program:
    """Export `module`, whose weights are called `names`, and see whether JAX can run it."""
    title = type(module).__name__
    try:
        inputs, named = signature.input_tensors()
        weights = dict(zip(names, signature.weight_tensors(), strict=True))
        exported = export(shallow_copy(module), weights, inputs, named, operators)
    except RefusedError:
        raise
    except Exception as error:  # PyTorch raises a dozen different things.
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ValueError(
            f"PyTorch cannot export {title} for inputs {signature}: {reason}. See whether the module itself takes such "
            "inputs, and let no Python control flow depend on values (use `torch.where`)."
        ) from error
    _check_operators(exported, title, operators)
    own = {}
    for spec in exported.graph_signature.input_specs:
        if own_name(spec) in constants:
            own[spec.arg.name] = constants[own_name(spec)]
        elif spec.kind.name == "CONSTANT_TENSOR":
            own[spec.arg.name] = to_array(exported.constants[spec.target])
    return Program(exported, operators, own)


def _check_operators(exported: Any, title: str, operators: Operators) -> None:
    called = {str(node.target) for node in exported.graph.nodes if _matters(node)}
    unknown = sorted(name for name in called - {str(operator.getitem)} if not find_operator(operators, name))
    if "aten.sym_size.int" in unknown:
        raise ValueError(
            f"{title} makes arrays whose shape depends on values, which JAX cannot compile; use `torch.where`."
        )
    if unknown:
        raise NotImplementedError(
            f"{title} uses operators that are unknown here: {', '.join(unknown)}; write the module without them, or "
            f'give functions of JAX for them: `from_torch(module, operators={{"{unknown[0]}": ...}})`.'
        )


def _run(graph: Any, operators: Operators, placeholders: Mapping[str, Any]) -> tuple[Any, ...]:
    map_arg = import_torch().fx.node.map_arg
    values: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = placeholders[node.name]
        elif _matters(node):
            args = map_arg(node.args, values.__getitem__)
            options = map_arg(node.kwargs, values.__getitem__)
            values[node] = _as_in_torch(node, _call(node.target, operators, args, options))
    [outputs] = graph.output_node().args
    return tuple(map_arg(outputs, values.__getitem__))


def _matters(node: Any) -> bool:
    """Assertions, and outputs that nobody asks for, do not."""
    return node.op == "call_function" and bool(node.users)


def _call(target: Any, operators: Operators, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    if target is operator.getitem:
        return args[0][args[1]]
    function = find_operator(operators, str(target))
    assert function is not None
    options = {name: value for name, value in options.items() if name not in PLACEMENT and value is not None}
    if "dtype" in options:
        options["dtype"] = to_jax_dtype(options["dtype"])
    return function(*args, **options)


def _as_in_torch(node: Any, value: Any) -> Any:
    """The value in the dtype that PyTorch has at this node; another shape would be a mistake in the table."""
    expected = node.meta.get("val")
    if not hasattr(expected, "dtype"):
        return value
    if jnp.shape(value) != tuple(expected.shape):
        name = node.args[0].target if node.target is operator.getitem else node.target
        raise ValueError(
            f"{name} gives shape {jnp.shape(value)} in JAX and {tuple(expected.shape)} in PyTorch; give another "
            f'function for it: `from_torch(module, operators={{"{name}": ...}})`.'
        )
    return jnp.asarray(value).astype(to_jax_dtype(expected.dtype))
