"""Meta-gradients of one task: what the paper calls Δ_t."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._adjoint import AbstractAdjoint, Implicit, Unroll, check_adjoint, check_finite
from ._linear import LinearStats
from ._prior import Prior
from ._problem import Adapted, Problem
from ._types import Data, Params, Scalar


class TaskGradient(NamedTuple):
    gradient: Prior
    adapted: Adapted
    query_loss: Scalar
    linear: LinearStats | None


class AbstractMetaGradient(eqx.Module):
    """How one task pulls at the prior: what a `Learner` averages over tasks.

    >>> import shrinx as sx
    >>> all(isinstance(m, sx.AbstractMetaGradient) for m in (sx.Predictive(sx.Unroll()), sx.Reptile(sx.Implicit())))
    True
    """

    @abc.abstractmethod
    def of_task(self, problem: Problem, query: Data | None) -> TaskGradient:
        """Adapt to the problem and differentiate."""

    @abc.abstractmethod
    def check_prior(self, prior: Prior) -> None:
        """Raise if this meta-gradient is not defined for such a prior (the part of it that adapts)."""

    @abc.abstractmethod
    def check_query(self, query: Data | None) -> None:
        """Raise if this meta-gradient needs a query set and there is none."""

    @property
    def learns_variances(self) -> bool:
        return True

    @property
    def learns_rates(self) -> bool:
        """Whether step sizes have a gradient."""
        return False


class Predictive(AbstractMetaGradient):
    r"""The gradient of the query loss at the adapted parameters (the predictive likelihood), mean and variances alike:

    $$ \Delta_t = \nabla_{\phi, \log\sigma^2} \; \ell(\hat\theta_t(\phi, \sigma^2); \text{query}). $$

    **Arguments:** `adjoint`, how θ̂ is differentiated: MAML and σ-MAML unroll, iMAML and σ-iMAML are implicit.

    >>> import optax, shrinx as sx
    >>> learner = sx.Learner(sx.Predictive(sx.Unroll()), sx.ProximalGD(0.1), num_steps=5, optimiser=optax.adam(1e-3))
    """

    adjoint: AbstractAdjoint

    def __check_init__(self):
        check_adjoint(self.adjoint)

    def of_task(self, problem: Problem, query: Data | None) -> TaskGradient:
        adapted, pullback = self.adjoint.pullback(problem)
        loss, cotangent = jax.value_and_grad(problem.loss_fn)(adapted.params, query)
        gradient, linear = pullback(cotangent)
        return TaskGradient(gradient, adapted, loss, linear)

    def check_prior(self, prior: Prior) -> None:
        if isinstance(self.adjoint, Implicit):
            check_finite(prior, "The implicit gradient")

    def check_query(self, query: Data | None) -> None:
        _check_query(query)

    @property
    def learns_rates(self) -> bool:
        return isinstance(self.adjoint, Unroll)


class Reptile(AbstractMetaGradient):
    r"""The mean follows the adapted parameters; the variances, if they are learned, follow the query loss:

    $$ \Delta_{t,\phi_m} = (\phi_m - \hat\theta_{t,m}) / \sigma_m^2, \qquad
       \Delta_{t,\log\sigma^2} = \nabla_{\log\sigma^2} \; \ell(\hat\theta_t; \text{query}) \text{ with φ held fixed.} $$

    **Arguments:**

    - `adjoint`: how θ̂ is differentiated with respect to the variances; `None` leaves them alone and needs no query.
    - `scaled`: divide by σ² as σ-Reptile does. Without, the update is plain Reptile's φ - θ̂. In a frozen module
      the quotient is 0/0; its limit is the gradient of the support loss, which is what is used.

    >>> import optax, shrinx as sx
    >>> learner = sx.Learner(
    ...     sx.Reptile(None, scaled=False), sx.ProximalGD(0.1), num_steps=5, optimiser=optax.sgd(0.5)
    ... )
    """

    adjoint: AbstractAdjoint | None
    scaled: bool = eqx.field(default=True, static=True)

    def __check_init__(self):
        if self.adjoint is not None:
            check_adjoint(self.adjoint)

    def of_task(self, problem: Problem, query: Data | None) -> TaskGradient:
        prior = problem.prior
        if self.adjoint is None:
            adapted, linear, loss = problem.run(prior), None, jnp.asarray(jnp.nan, prior.log_variance.dtype)
            log_variance = jnp.zeros_like(prior.log_variance)
            if query is not None:
                loss = problem.loss_fn(adapted.params, query)
        else:
            adapted, pullback = self.adjoint.pullback(problem)
            loss, cotangent = jax.value_and_grad(problem.loss_fn)(adapted.params, query)
            gradient, linear = pullback(cotangent)
            log_variance = gradient.log_variance
        rates = jax.tree.map(jnp.zeros_like, prior.rates)
        gradient = Prior(self._mean_gradient(problem, adapted), log_variance, prior.modules, rates)
        return TaskGradient(gradient, adapted, loss, linear)

    def _mean_gradient(self, problem: Problem, adapted: Adapted) -> Params:
        prior = problem.prior
        if not self.scaled:
            return jax.tree.map(lambda d, phi: -d.astype(phi.dtype), adapted.displacement, prior.mean)
        support = jax.grad(problem.loss_fn)(adapted.params, problem.batch(problem.num_steps))
        still = prior if problem.trainable is None else prior.freeze_all_but(problem.trainable)

        def scale(frozen: Array, precision: Array, displacement: Array, gradient: Array) -> Array:
            pull = displacement.astype(precision.dtype) * precision
            return jnp.where(frozen > 0, gradient, -pull.astype(gradient.dtype))

        frozen = prior.modules.expand(still.frozen.astype(prior.log_variance.dtype))
        precision = prior.modules.expand(still.precision())
        return jax.tree.map(scale, frozen, precision, adapted.displacement, support)

    def check_prior(self, prior: Prior) -> None:
        if self.scaled or isinstance(self.adjoint, Implicit):
            check_finite(prior, "σ-Reptile")

    def check_query(self, query: Data | None) -> None:
        if self.adjoint is not None:
            _check_query(query)

    @property
    def learns_variances(self) -> bool:
        return self.adjoint is not None


def _check_query(query: Data | None) -> None:
    if query is None:
        raise ValueError("This learner judges adapted parameters by `task.query`, which is missing.")
