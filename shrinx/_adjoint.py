"""How adapted parameters are differentiated with respect to the prior.

Three answers to one question, dθ̂/d(φ, log σ²): through the steps that were taken (`Unroll`), through the optimality
condition they led to (`Implicit`), or as if the gradient of the loss did not change (`FirstOrder`).
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ._check import check_at_least, is_concrete
from ._diagonal import Diagonal
from ._linear import CG, LinearStats, ProductFn
from ._prior import Prior
from ._problem import Adapted, Problem, no_progress
from ._tree import stop_gradient
from ._types import Params

Pullback = Callable[[Params], tuple[Prior, LinearStats | None]]
"""From the gradient of anything with respect to θ̂ to its gradient with respect to the prior."""


class AbstractAdjoint(eqx.Module):
    """What `adapt` and the learners need of a way to differentiate.

    >>> import shrinx as sx
    >>> all(isinstance(adjoint, sx.AbstractAdjoint) for adjoint in (sx.Unroll(), sx.Implicit(), sx.FirstOrder()))
    True
    """

    @abc.abstractmethod
    def adapt(self, problem: Problem) -> Adapted:
        """Run the problem; the derivative of the result's `params` is this adjoint's."""

    @abc.abstractmethod
    def pullback(self, problem: Problem) -> tuple[Adapted, Pullback]:
        """The same with the derivative in hand, so that its statistics can be looked at."""


class Unroll(AbstractAdjoint):
    r"""Backpropagation through the inner steps: MAML and σ-MAML. Exact for the steps that were taken.

    **Arguments:**

    - `checkpoint`: keep the state of a step, not what its gradient computed, and of many steps the state once in
      √(num_steps); compute the rest again in the reverse pass. Memory then grows with the square root of the horizon.
      (A few steps of a network with less than 3,000 parameters are kept whole: that is faster.)
    - `last`: go back through so many steps only and take what was before them for constant (truncated
      backpropagation). Time and memory are then flat in the horizon, as with `Implicit`, and unlike it nothing is
      assumed about convergence: where adaptation is stopped early, or ends in the noise of mini-batches, the variances
      get a gradient of the right sign. With 0 steps the mean's gradient is first order and the variances have none.
    - `mixed`: go back through a step's gradient by its derivative along what arrives, forward over reverse, instead of
      by reverse mode again: faster, and more so for deep networks and on a GPU. It is right where the gradient is that
      of a function. It is **not** if the loss has a `jax.custom_vjp` or `jax.custom_jvp` that is no true derivative, as
      gradients that are clipped, reversed or passed straight through (by `stop_gradient` they may be). Nor is there
      forward mode through adaptation then. Solvers of your own take part if their gradients are by
      [`value_and_gradient`][shrinx.value_and_gradient].

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> def adapted(prior):
    ...     return sx.adapt(
    ...         loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.5), num_steps=30, adjoint=sx.Unroll()
    ...     ).params[0]
    >>> jax.grad(adapted)(sx.Prior.create(jnp.zeros(1))).log_variance.round(4)  # θ̂ = (σ² + φ) / (1 + σ²)
    Array([0.25], dtype=float32)
    """

    checkpoint: bool = eqx.field(default=True, static=True)
    last: int | None = eqx.field(default=None, static=True)
    mixed: bool = eqx.field(default=False, static=True)

    def __check_init__(self):
        if not isinstance(self.checkpoint, bool):
            raise TypeError(f"`checkpoint` must be true or false, got {self.checkpoint!r}; steps are `last=`.")
        if not isinstance(self.mixed, bool):
            raise TypeError(f"`mixed` must be true or false, got {self.mixed!r}.")
        if self.last is not None:
            check_at_least("last", self.last, 0)

    def adapt(self, problem: Problem) -> Adapted:
        return problem.run(problem.prior, checkpoint=self.checkpoint, last=self.last, mixed=self.mixed)

    def pullback(self, problem: Problem) -> tuple[Adapted, Pullback]:
        return _vjp(self, problem)


class FirstOrder(AbstractAdjoint):
    r"""No second derivatives: FOMAML. The optimality condition θ̂ = φ - σ² ∇ℓ(θ̂), with ∇ℓ held constant, gives

    $$ \frac{d\hat\theta}{d\phi} = I, \qquad \frac{d\hat\theta}{d\log\sigma_m^2} = \hat\theta_m - \phi_m. $$

    This is `Implicit` with the Hessian left out. With respect to data the derivative is zero by the same rule.

    Variances it leads to are the best ones only where tasks differ equally in all directions of a module. Steep
    directions, in which the data decide whatever the variance is, count in full here, and not at all in `Implicit`:
    where tasks share these, as speakers do, variances end too small.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> def adapted(prior):
    ...     return sx.adapt(
    ...         loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.5), num_steps=30, adjoint=sx.FirstOrder()
    ...     ).params[0]
    >>> jax.grad(adapted)(sx.Prior.create(jnp.zeros(1))).mean
    Array([1.], dtype=float32)
    """

    def adapt(self, problem: Problem) -> Adapted:
        adapted = _without_gradient(problem)
        prior = problem.prior
        log_variance = jnp.where(jnp.isfinite(prior.log_variance), prior.log_variance, 0)
        # 1 in value, with the derivative of log σ².
        one = prior.modules.expand(1 + log_variance - jax.lax.stop_gradient(log_variance))
        displacement = jax.tree.map(lambda d, o: d * o.astype(d.dtype), adapted.displacement, one)
        return _with_params(adapted, prior, prior.at(displacement))

    def pullback(self, problem: Problem) -> tuple[Adapted, Pullback]:
        return _vjp(self, problem)


class Implicit(AbstractAdjoint):
    r"""The implicit function theorem at the MAP estimate: iMAML and σ-iMAML. Memory is flat in the horizon.

    At a stationary point of loss plus energy, with H the Hessian of the support loss and g the incoming gradient,

    $$ d\phi = (I + (H + d)\Sigma)^{-1} g, \qquad d \log\sigma_m^2 = d\phi_m \cdot (\hat\theta_m - \phi_m). $$

    It is right to the extent that adaptation has converged (`Adapted.residual`) and the linear solve too. All
    variances must be finite. The Hessian is taken on batches that adaptation has not used. Only derivatives with
    respect to the prior are defined, in reverse mode; those with respect to data, in forward mode, and second ones
    raise an error (use `Unroll`).

    **Arguments:**

    - `linear_solver`, a [`CG`][shrinx.CG], or [`Diagonal`][shrinx.Diagonal] where adaptation by Adam is long.
    - `batches`: average the Hessian over so many mini-batches, one after the other. That of a single one is flat in
      most directions.
    - `variance_adjoint`: another adjoint for the variances. They feel it most if adaptation has not converged: the
      implicit gradient then takes every step that is still to come for one that was not worth taking, and shrinks
      modules that are in use. `Unroll(last=20)` only asks what the last steps were worth.

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> def adapted(prior):
    ...     return sx.adapt(
    ...         loss_fn, prior, jnp.ones(1), sx.ProximalGD(0.5), num_steps=30, adjoint=sx.Implicit()
    ...     ).params[0]
    >>> jax.grad(adapted)(sx.Prior.create(jnp.zeros(1))).mean  # θ̂ = (σ² + φ) / (1 + σ²)
    Array([0.5], dtype=float32)
    """

    linear_solver: CG | Diagonal = CG()
    batches: int = eqx.field(default=1, static=True)
    variance_adjoint: Unroll | FirstOrder | None = None

    def __check_init__(self):
        check_at_least("batches", self.batches, 1)
        if not isinstance(self.linear_solver, CG | Diagonal):
            raise TypeError(f"`linear_solver` must be a `CG` or `Diagonal`, got {self.linear_solver!r}.")
        if self.variance_adjoint is not None:
            check_adjoint(self.variance_adjoint, "variance_adjoint")

    def adapt(self, problem: Problem) -> Adapted:
        prior = problem.prior
        # What `loss_fn` and `sample` close over may be traced, and a custom rule sees its arguments only: they are made
        # some.
        loss_fn = eqx.filter_closure_convert(problem.loss_fn, prior.mean, eqx.filter_eval_shape(problem.batch, 0))
        sample = problem.sample
        if sample is not None:
            sample = eqx.filter_closure_convert(sample, problem.key, problem.data)
        still = Problem(**{**vars(problem), "prior": stop_gradient(prior), "loss_fn": loss_fn, "sample": sample})
        # Not stopped beyond the prior: a derivative with respect to data, or to what `loss_fn` closes over, would not
        # be computed, and the custom rule raises an error instead of taking it for zero.
        adapted = self._watched(still).run(still.prior)
        params = _implicit_params(prior, still, adapted, self)
        return _with_params(_unwatched(stop_gradient(adapted), problem), prior, params)

    def pullback(self, problem: Problem) -> tuple[Adapted, Pullback]:
        if self.variance_adjoint is None:
            adapted = _without_gradient(self._watched(problem))
            return _unwatched(adapted, problem), lambda cotangent: _solve(problem, adapted, cotangent, self)
        adapted, other = self.variance_adjoint.pullback(self._watched(problem))

        def pullback(cotangent: Params) -> tuple[Prior, LinearStats]:
            gradient, stats = _solve(problem, adapted, cotangent, self)
            return _with_variances_of(other(cotangent)[0], gradient), stats

        return _unwatched(adapted, problem), pullback

    def _watched(self, problem: Problem) -> Problem:
        """The same problem, whose result has the solver's state if that is needed."""
        if not isinstance(self.linear_solver, Diagonal) or problem.progress is not None:
            return problem
        part = problem.prior if problem.trainable is None else problem.prior.restrict(problem.trainable)[0]
        return Problem(**{**vars(problem), "progress": no_progress(stop_gradient(part), problem.solver)})


def check_adjoint(adjoint: Any, name: str = "adjoint") -> None:
    if not isinstance(adjoint, AbstractAdjoint):
        raise TypeError(f"`{name}` must be an adjoint such as `Unroll()`, got {adjoint!r}.")


def check_finite(prior: Prior, why: str) -> None:
    """Where values can be looked at."""
    if not is_concrete(prior.log_variance):
        return
    infinite = [prior.modules.names[index] for index in np.flatnonzero(np.isposinf(np.asarray(prior.log_variance)))]
    if infinite:
        raise ValueError(f"{why} needs finite variances, but modules {infinite} have none.")


def _solve(problem: Problem, adapted: Adapted, cotangent: Params, implicit: Implicit) -> tuple[Prior, LinearStats]:
    prior = problem.prior
    if problem.trainable is not None:
        prior = prior.freeze_all_but(problem.trainable)
    hessian = _fresh_hessian(problem, adapted.params, implicit.batches)
    if isinstance(implicit.linear_solver, Diagonal):
        squares, key = _squared_gradients(problem, adapted)
        mean, stats = implicit.linear_solver.solve(hessian, cotangent, prior, squares=squares, key=key)
    else:
        mean, stats = implicit.linear_solver.solve(hessian, cotangent, prior)
    dtype = prior.log_variance.dtype
    products = jax.tree.map(lambda a, b: a.astype(dtype) * b.astype(dtype), mean, adapted.displacement)
    rates = jax.tree.map(jnp.zeros_like, prior.rates)
    return Prior(mean=mean, log_variance=prior.modules.sum(products), modules=prior.modules, rates=rates), stats


def _unwatched(adapted: Adapted, problem: Problem) -> Adapted:
    """Without a state that nobody asked for: it would be carried out of compiled programs."""
    return adapted if problem.progress is not None else Adapted(**{**vars(adapted), "progress": None})


def _squared_gradients(problem: Problem, adapted: Adapted) -> tuple[Params, PRNGKeyArray]:
    if problem.sample is None or problem.key is None:
        raise ValueError("`Diagonal` looks at the gradients of mini-batches: it needs a `sample`.")
    assert adapted.progress is not None
    squares = problem.solver.squared_gradients(adapted.progress.solver)
    if squares is None:
        kind = type(problem.solver).__name__
        raise ValueError(f"`Diagonal` needs a solver that keeps squared gradients, `ProximalAdam`, not `{kind}`.")
    if problem.trainable is not None:
        squares = problem.prior.restrict(problem.trainable)[1].merge(squares, problem.prior.zeros())
    return squares, jax.random.fold_in(problem.key, problem.num_steps)


def _fresh_hessian(problem: Problem, params: Params, batches: int) -> ProductFn:
    """The product with the Hessian of the support loss on data that adaptation has not used."""
    if batches == 1 or problem.sample is None:
        batch = problem.batch(problem.num_steps)
        return jax.linearize(jax.grad(lambda params: problem.loss_fn(params, batch)), params)[1]
    # Filtered: plain numbers in the data stay what they are.
    several = eqx.filter_vmap(problem.batch)(problem.num_steps + jnp.arange(batches, dtype=jnp.int32))
    arrays, others = eqx.partition(several, eqx.is_array)

    def product(vector: Params) -> Params:
        # One mini-batch after the other, and what its gradient computes again in every product: all at once, or kept
        # from product to product, it would take the memory of so many gradients.
        def add(total: Params, arrays: Any) -> tuple[Params, None]:
            slope = jax.grad(lambda params: problem.loss_fn(params, eqx.combine(arrays, others)))
            _, image = jax.jvp(slope, (params,), (vector,))
            return jax.tree.map(lambda a, b: a + b / batches, total, image), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, vector), arrays)[0]

    return product


@eqx.filter_custom_vjp
def _implicit_params(prior: Prior, problem: Problem, adapted: Adapted, implicit: Implicit) -> Params:
    return adapted.params


@_implicit_params.def_fwd
def _implicit_params_fwd(perturbed, prior, problem, adapted, implicit):
    del perturbed, prior, problem, implicit
    return adapted.params, None


@_implicit_params.def_bwd
def _implicit_params_bwd(residuals, cotangent, perturbed, prior, problem, adapted, implicit):
    del residuals, perturbed
    # Of what nobody used there is no cotangent.
    cotangent = jax.tree.map(
        lambda theta, c: jnp.zeros_like(theta) if c is None else c,
        adapted.params,
        cotangent,
        is_leaf=lambda leaf: leaf is None,
    )
    gradient, _ = _solve(problem, adapted, cotangent, implicit)
    if implicit.variance_adjoint is not None:
        # Adapts a second time: a custom rule cannot keep the derivative that was at hand in the forward pass.
        _, other = implicit.variance_adjoint.pullback(problem)
        gradient = _with_variances_of(other(cotangent)[0], gradient)
    return _only_once(gradient, prior)


@jax.custom_jvp
def _only_once(gradient: Prior, prior: Prior) -> Prior:
    """The gradient, which is no function of the prior that could be differentiated again: it would seem constant."""
    return gradient


@_only_once.defjvp
def _only_once_jvp(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("`Implicit` has first derivatives only; for second ones adapt with `Unroll()`.")


def _with_variances_of(other: Prior, gradient: Prior) -> Prior:
    return eqx.tree_at(lambda prior: prior.log_variance, gradient, other.log_variance)


def _without_gradient(problem: Problem) -> Adapted:
    return stop_gradient(problem.run(problem.prior))


def _with_params(adapted: Adapted, prior: Prior, params: Params) -> Adapted:
    """`adapted`, with the derivative of `params` on its parameters and on their displacement from the mean."""

    def displace(displacement, theta, phi):
        change = (theta - jax.lax.stop_gradient(theta)) - (phi - jax.lax.stop_gradient(phi))
        return displacement + change.astype(displacement.dtype)

    return Adapted(
        params=params,
        displacement=jax.tree.map(displace, adapted.displacement, params, prior.mean),
        losses=adapted.losses,
        gradient_norms=adapted.gradient_norms,
        failed_step=adapted.failed_step,
        progress=adapted.progress,
    )


def _vjp(adjoint: AbstractAdjoint, problem: Problem) -> tuple[Adapted, Pullback]:
    def run(prior: Prior) -> tuple[Params, Adapted]:
        adapted = adjoint.adapt(eqx.tree_at(lambda p: p.prior, problem, prior))
        return adapted.params, adapted

    _, vjp, adapted = jax.vjp(run, problem.prior, has_aux=True)
    return adapted, lambda cotangent: (vjp(cotangent)[0], None)
