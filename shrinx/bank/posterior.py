r"""Laplace's approximation of a task's posterior: how sure the adapted parameters are.

Around the MAP estimate the posterior of the task-specific modules is a Gaussian with precision $H + 1/\sigma^2$, where
H is the Hessian of the task's loss and σ² the learned prior. In whitened form, with s = σ broadcast to the parameters,

$$ \Sigma = s \, (I + s H s)^{-1} s / c, $$

which holds for σ = 0 too. Directions of negative curvature count as flat: there the prior alone decides. The factor c
is `loss_scale`: what `loss_fn` must be multiplied by to be the negative log-likelihood of all the data.
"""

import abc
from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float

from .._check import check_data, check_prior, is_concrete
from .._loss import check_loss
from .._modules import accumulation_dtype
from .._prior import Prior
from .._select import Selection, module_names
from .._types import Data, LossFn, Params, Scalar

Structure: TypeAlias = Literal["diagonal", "full"]

LARGEST_FULL = 4096
_AT_ONCE = 64


class AbstractPosterior(eqx.Module):
    """The covariance of a task's parameters, these in one row as `Restriction.extract` and `ravel_pytree` put them."""

    array: eqx.AbstractVar[Array]
    """All there is to store."""

    @abc.abstractmethod
    def variance(self, jacobian: Float[Array, "... parameters"]) -> Float[Array, "..."]:
        """The variance of outputs with the derivatives `jacobian`."""


class DiagonalPosterior(AbstractPosterior):
    """One variance per parameter."""

    array: Float[Array, " parameters"]

    def variance(self, jacobian: Float[Array, "... parameters"]) -> Float[Array, "..."]:
        return jnp.square(jacobian.astype(self.array.dtype)) @ self.array


class FullPosterior(AbstractPosterior):
    """All covariances, as a square root of their matrix."""

    array: Float[Array, "parameters parameters"]

    def variance(self, jacobian: Float[Array, "... parameters"]) -> Float[Array, "..."]:
        return jnp.sum(jnp.square(jacobian.astype(self.array.dtype) @ self.array), axis=-1)


POSTERIORS: dict[str, type[AbstractPosterior]] = {"diagonal": DiagonalPosterior, "full": FullPosterior}


def laplace(
    loss_fn: LossFn,
    prior: Prior,
    params: Params,
    data: Data,
    *,
    trainable: str | Iterable[str] | Selection | None = None,
    structure: Structure = "diagonal",
    loss_scale: float = 1.0,
) -> AbstractPosterior:
    r"""Laplace's approximation of a task's posterior, with the learned prior as its prior.

    $$ p(\theta | \text{data}) \approx \mathcal{N}(\hat\theta, \Sigma), \qquad
       \Sigma^{-1} = c \, (\nabla^2 \ell(\hat\theta) + 1/\sigma^2) $$

    It takes one Hessian-vector product per parameter of the modules in question, so these should be few.

    **Arguments:**

    - `loss_fn`, `prior`, `data`: those the task was adapted with.
    - `params`: the adapted parameters, at a minimum of loss plus energy.
    - `trainable`: the modules that were adapted, all by default; the others are certain.
    - `structure`: `"diagonal"` keeps one variance per parameter. `"full"` keeps all covariances, of 4,096 parameters at
      most; with a last layer alone this is the last-layer Laplace approximation.
    - `loss_scale`: c, what `loss_fn` must be multiplied by to be the negative log-likelihood of all the data: 1 if it
      is that, N if it is a mean over N points, N/2ν² if it is a mean squared error and the noise has variance ν².

    **Returns:** the posterior, for [`Bank.put`][shrinx.Bank].

    >>> import jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)  # x ~ N(θ, 1)
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=1.0)
    >>> posterior = sx.laplace(loss_fn, prior, jnp.array([0.75]), jnp.ones(3))
    >>> posterior.array  # 1 / (3 + 1)
    Array([0.25], dtype=float32)
    """
    check_prior(prior)
    check_data(data, "data")
    prior.modules.check(params)
    check_loss(loss_fn, params, data)
    names = prior.modules.names if trainable is None else module_names(trainable)
    check_structure(structure, prior.restrict(names or ())[0], loss_scale)
    return _laplace(loss_fn, prior, params, names or (), data, structure, loss_scale)


def check_structure(structure: str, part: Prior, loss_scale: float) -> None:
    """Can the posterior of `part` be had in this form?"""
    if structure not in get_args(Structure):
        raise ValueError(f"Unknown structure {structure!r} of a posterior; known: {', '.join(get_args(Structure))}.")
    if is_concrete(loss_scale) and not (np.isfinite(loss_scale) and loss_scale > 0):
        raise ValueError(f"`loss_scale` must be a positive number, got {loss_scale}.")
    size = sum(part.modules.sizes)
    if structure == "full" and size > LARGEST_FULL:
        raise ValueError(
            f"A full posterior of {size:,} parameters is too large (at most {LARGEST_FULL:,}): take 'diagonal', or "
            "fewer modules."
        )
    if not is_concrete(part.log_variance):
        return
    free = [name for name, value in zip(part.modules.names, part.log_variance, strict=True) if value == np.inf]
    if free:
        raise ValueError(f"Modules {free} have an infinite variance: without a prior they have no posterior.")


@eqx.filter_jit
def _laplace(
    loss_fn: LossFn,
    prior: Prior,
    params: Params,
    names: tuple[str, ...],
    data: Data,
    structure: str,
    loss_scale: float,
) -> AbstractPosterior:
    part, restriction = prior.restrict(names)

    def objective(ours: Params) -> Scalar:
        return loss_fn(restriction.merge(ours, params), data)

    return posterior_of(objective, part, restriction.extract(params), structure, loss_scale)


def posterior_of(
    objective: Callable[[Params], Scalar], part: Prior, params: Params, structure: str, loss_scale: float
) -> AbstractPosterior:
    """`laplace` for a loss that is a function of the task-specific modules alone; works inside `jit` and `vmap`."""
    dtype = accumulation_dtype(params)
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, params)
    flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(dtype), params))
    deviations = jax.tree.map(
        lambda variance, leaf: jnp.broadcast_to(jnp.sqrt(variance), leaf.shape).astype(dtype),
        part.modules.expand(part.variance),
        params,
    )
    s = ravel_pytree(deviations)[0]

    def flat_objective(vector: Array) -> Scalar:
        return objective(jax.tree.map(lambda leaf, kind: leaf.astype(kind), unravel(vector), dtypes)).astype(dtype)

    _, product = jax.linearize(jax.grad(flat_objective), flat)
    unit = jnp.eye(len(flat), dtype=dtype)
    if structure == "diagonal":
        indices = jnp.arange(len(flat), dtype=jnp.int32)
        curvature = jax.lax.map(lambda i: product(unit_vector(i, flat))[i], indices, batch_size=_AT_ONCE)
        return DiagonalPosterior(jnp.square(s) / (1 + jnp.square(s) * jnp.maximum(curvature, 0)) / loss_scale)
    hessian = jax.lax.map(product, unit, batch_size=_AT_ONCE)
    whitened = unit + s[:, None] * (0.5 * (hessian + hessian.T)) * s[None, :]
    eigenvalues, vectors = jnp.linalg.eigh(whitened)
    root = s[:, None] * vectors * jax.lax.rsqrt(loss_scale * jnp.maximum(eigenvalues, 1))[None, :]
    return FullPosterior(root)


def unit_vector(index: Array, like: Array) -> Array:
    return jnp.zeros_like(like).at[index].set(1)


def calibration(errors: ArrayLike, deviations: ArrayLike, noise: float, *, level: float = 0.95) -> float:
    r"""How much narrower intervals should be for a share `level` of the truth to lie within, judged on known tasks.

    The variances learned across tasks are those that serve point predictions best, which are often larger than the
    spread of the tasks; intervals then are too wide. One factor k mends it: with the quantile z of the normal
    distribution (1.96), an error lies in the interval of $d^2/k + \nu^2$ as long as $k \le d^2 / (e^2/z^2 - \nu^2)$,
    and k is such that this holds for the share `level` of the errors. Multiply `loss_scale` by it.

    **Arguments:** `errors`, targets minus predictions at points nobody adapted to; `deviations`, what
    `predict(..., uncertainty=True)` said there; `noise`, ν, the standard deviation of the targets' noise.

    >>> import jax.numpy as jnp
    >>> errors, deviations = jnp.linspace(-1.96, 1.96, 1001), jnp.full(1001, 10.0)
    >>> round(calibration(errors, deviations, 0.0, level=0.95))
    111
    """
    e, d = np.asarray(errors, np.float64), np.asarray(deviations, np.float64)
    if e.shape != d.shape or not e.size:
        raise ValueError(f"`errors` and `deviations` must have one shape, got {e.shape} and {d.shape}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}.")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    excess = np.square(e / z) - noise**2
    # At most a million: where the noise alone covers an error, any factor would do.
    limits = np.square(d) / np.maximum(excess, 1e-6 * np.square(d) + 1e-300)
    return float(np.quantile(limits, 1 - level))
