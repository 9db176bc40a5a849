"""Second derivatives of a task's loss by mixed modes: its gradient by reverse mode, that one's derivative by forward.

The way back through a gradient is, as a rule, reverse mode once more. But what arrives is a vector v, and what is
wanted is the Hessian times v: the change of the gradient along v, one pass forward from nothing but the place
(Kemaev et al., Scalable meta-learning via mixed-mode differentiation, 2025).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._types import Params, Scalar


class MixedMode(eqx.Module):
    """A loss of the displacement, whose gradient by `value_and_gradient` is differentiated by mixed modes.

    Whatever else is done to it is done to the loss itself.
    """

    loss_fn: Callable[[Params], Scalar]

    def __call__(self, displacement: Params) -> Scalar:
        return self.loss_fn(displacement)


def value_and_gradient(loss_fn: Callable[[Params], Scalar], displacement: Params) -> tuple[Scalar, Params]:
    """The loss of a step and its gradient, for inner solvers: `jax.value_and_grad(loss_fn)(displacement)`.

    Written this way, with the `loss_fn` it was given, a step takes part in [`Unroll(mixed=True)`][shrinx.Unroll].

    >>> import jax.numpy as jnp, shrinx as sx
    >>> sx.value_and_gradient(lambda displacement: jnp.sum(displacement**2), jnp.ones(2))
    (Array(2., dtype=float32), Array([2., 2.], dtype=float32))
    """
    if not isinstance(loss_fn, MixedMode):
        return jax.value_and_grad(loss_fn)(displacement)
    # A custom rule sees its arguments only, so what the loss closes over (the mean, the batch) is made one.
    return _value_and_gradient((eqx.filter_closure_convert(loss_fn.loss_fn, displacement), displacement))


@eqx.filter_custom_vjp
def _value_and_gradient(loss_and_place: tuple[Any, Params]) -> tuple[Scalar, Params]:
    loss_fn, displacement = loss_and_place
    return jax.value_and_grad(loss_fn)(displacement)


@_value_and_gradient.def_fwd
def _forward(perturbed: Any, loss_and_place: Any) -> tuple[Any, Any]:
    # Plainly, so that third derivatives are not those of a custom rule, which has one.
    loss_fn, displacement = loss_and_place
    return jax.value_and_grad(loss_fn)(displacement), perturbed[0]


@_value_and_gradient.def_bwd
def _backward(wanted: Any, cotangents: Any, perturbed: Any, loss_and_place: Any) -> Any:
    del perturbed
    loss_fn, displacement = loss_and_place
    # A derivative with respect to images, say, is half the work, and most often nobody wants it.
    moving, still = eqx.partition(loss_fn, wanted)
    of_loss, of_gradient = cotangents
    along = jax.tree.map(lambda d, c: jnp.zeros_like(d) if c is None else c, displacement, of_gradient)

    def gradient(displacement: Params) -> Any:
        return jax.grad(lambda moving, place: eqx.combine(moving, still)(place), (0, 1))(moving, displacement)

    here, change = jax.jvp(gradient, (displacement,), (along,))
    if of_loss is None:
        return change
    return jax.tree.map(lambda slope, moved: moved + of_loss.astype(slope.dtype) * slope, here, change)
