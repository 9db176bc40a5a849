"""The entry point of adaptation."""

from collections.abc import Iterable

import equinox as eqx
from jaxtyping import PRNGKeyArray

from ._adjoint import AbstractAdjoint, Implicit, Unroll, check_adjoint, check_finite
from ._check import check_at_least, check_data, check_key, check_prior
from ._prior import Prior
from ._problem import Adapted, make_problem
from ._select import Selection, module_names
from ._solver import AbstractSolver
from ._types import Data, LossFn, SampleFn


def adapt(
    loss_fn: LossFn,
    prior: Prior,
    data: Data,
    solver: AbstractSolver,
    *,
    num_steps: int,
    key: PRNGKeyArray | None = None,
    sample: SampleFn | None = None,
    trainable: str | Iterable[str] | Selection | None = None,
    adjoint: AbstractAdjoint = Unroll(),
) -> Adapted:
    r"""Adapt to a task: from the prior's mean towards the MAP estimate

    $$ \hat\theta = \arg\min_\theta \; \ell(\theta; \text{data}) + \sum_m \|\theta_m - \phi_m\|^2 / 2\sigma_m^2. $$

    All steps are one `lax.scan`. Memory does not depend on `num_steps` unless the result is differentiated with
    `Unroll`. `adapt` may be called inside `jit`, `vmap` and `grad`; by itself it is compiled once per `loss_fn`,
    `solver` and shapes, so pass the same function, not a new lambda, and a learning rate that varies as an array.

    **Arguments:**

    - `loss_fn`: `loss_fn(params, batch)`, the negative log-likelihood of a batch, one number. See
      [`Prior`][shrinx.Prior] for what its scale (sum or mean) means.
    - `prior`: where to start and how far each module may go.
    - `data`: the task's data, a pytree of arrays.
    - `solver`: an inner solver, such as [`ProximalGD`][shrinx.ProximalGD] or [`ProximalAdam`][shrinx.ProximalAdam].
    - `num_steps`: how many steps, at least 1.
    - `key`, `sample`: with `sample(key, data)` every step draws a mini-batch of its own; without, it sees all data.
    - `trainable`: names of modules (or a `Selection`) to adapt. The others stay at the mean; no gradient, state or
      update exists for them.
    - `adjoint`: how the parameters are differentiated, if they are: [`Unroll`][shrinx.Unroll],
      [`Implicit`][shrinx.Implicit] or [`FirstOrder`][shrinx.FirstOrder]. Of what is reported, the losses of steps
      that `Unroll` goes back through have derivatives; those of anything else are zero.

    **Returns:** [`Adapted`][shrinx.Adapted].

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"slope": jnp.zeros(1), "offset": jnp.zeros(1)}, variance={"slope": 1e4, "offset": 1e4})
    >>> x = jnp.linspace(-1, 1, 20)
    >>> def loss_fn(params, batch):
    ...     x, y = batch
    ...     return jnp.sum((params["slope"] * x + params["offset"] - y) ** 2)
    >>> adapted = sx.adapt(loss_fn, prior, (x, 3 * x + 1), sx.ProximalGD(0.02), num_steps=100)
    >>> adapted.params["slope"].round(2), bool(adapted.residual < 1e-3), int(adapted.failed_step)
    (Array([3.], dtype=float32), True, -1)
    >>> only = sx.adapt(loss_fn, prior, (x, 3 * x + 1), sx.ProximalGD(0.02), num_steps=100, trainable="offset")
    >>> only.params["slope"], only.params["offset"].round(2)
    (Array([0.], dtype=float32), Array([1.], dtype=float32))
    """
    check_adjoint(adjoint)
    check_at_least("num_steps", num_steps, 1)
    check_key(key)
    check_data(data, "data")
    names = module_names(trainable)
    if isinstance(adjoint, Implicit):
        check_prior(prior)
        check_finite(prior if names is None else prior.restrict(names)[0], "The implicit gradient")
    try:
        return _adapt(loss_fn, prior, data, solver, int(num_steps), key, sample, names, adjoint)
    except (TypeError, RuntimeError) as error:
        forward = "forward-mode" in str(error)
        if forward and isinstance(adjoint, Unroll) and adjoint.mixed:
            raise TypeError(
                "Forward mode through adaptation (`jax.jvp`, `jax.jacfwd`), or a `jax.custom_vjp` in the loss, needs "
                "`adjoint=Unroll()`, not `mixed=True`."
            ) from error
        if isinstance(adjoint, Implicit) and (forward or "Unexpected tangent" in str(error)):
            raise TypeError(
                "`Implicit` has derivatives with respect to the prior only, and in reverse mode: for those with "
                "respect to data, solver or what the loss closes over, and for `jax.jvp` and `jax.jacfwd`, adapt with "
                "`adjoint=Unroll()`."
            ) from error
        raise


@eqx.filter_jit
def _adapt(
    loss_fn: LossFn,
    prior: Prior,
    data: Data,
    solver: AbstractSolver,
    num_steps: int,
    key: PRNGKeyArray | None,
    sample: SampleFn | None,
    trainable: tuple[str, ...] | None,
    adjoint: AbstractAdjoint,
) -> Adapted:
    problem = make_problem(
        loss_fn, prior, data, solver, num_steps=num_steps, key=key, sample=sample, trainable=trainable
    )
    return adjoint.adapt(problem)
