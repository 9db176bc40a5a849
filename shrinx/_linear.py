"""The linear system behind an implicit gradient, and the truncated conjugate gradients that solve it."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._check import as_number, check_at_least, check_number
from ._modules import accumulation_dtype
from ._prior import Prior
from ._tree import tree_axpy, tree_dot, tree_where
from ._types import Params

ProductFn = Callable[[Params], Params]
"""The product of a Hessian with a vector."""


class LinearStats(NamedTuple):
    """How a linear solve went.

    `num_steps` taken; `residual` left, relative to the right-hand side; `negative_curvature` is true when the solve
    stopped early because the Hessian is indefinite (adapt longer, raise `damping`, or lower the variances).

    >>> import jax.numpy as jnp, shrinx as sx
    >>> _, stats = sx.CG(max_steps=5).solve(lambda v: -10 * v, jnp.ones(2), sx.Prior.create(jnp.zeros(2)))
    >>> bool(stats.negative_curvature), int(stats.num_steps)
    (True, 0)
    """

    num_steps: Int[Array, "..."]
    residual: Float[Array, "..."]
    negative_curvature: Bool[Array, "..."]


class CG(eqx.Module):
    r"""Truncated, damped conjugate gradients for the system of an implicit gradient.

    With g the gradient of the query loss, H the Hessian of the support loss and Σ the diagonal of variances, both at
    the adapted parameters, the meta-gradient of the mean is

    $$ d\phi = \Sigma^{-1} (\Sigma^{-1} + H + d)^{-1} g = (I + (H + d)\Sigma)^{-1} g. $$

    `system="whitened"` solves the second form by CG in the inner product $\langle a, b \rangle = a^T \Sigma b$, in
    which its matrix is symmetric. This is CG on $(I + \sigma(H + d)\sigma)u = \sigma g$ in the variable u/σ: nothing
    is divided by σ, so it holds in float32 however small the variances are, and for σ = 0.
    `system="preconditioned"` is the paper's: CG on the first form, preconditioned by max(σ⁻²/10³, 1).

    The iteration stops after `max_steps`, at a relative residual of `tolerance` (or of rounding), or at negative
    curvature, whichever comes first. If already the first direction has negative curvature, the Hessian is left out.
    The whitened system ends with one Jacobi step in modules of small variance, which CG's inner product hardly sees;
    `LinearStats.residual` is from before it.

    **Arguments:** `max_steps`; `damping`, d ≥ 0 (iMAML's damping in units of λ is d/λ); `tolerance`; `system`.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create(jnp.zeros(2), variance=0.5)
    >>> solution, stats = sx.CG(max_steps=5).solve(lambda v: 2 * v, jnp.ones(2), prior)
    >>> solution, int(stats.num_steps)
    (Array([0.5, 0.5], dtype=float32), 1)
    """

    max_steps: int = eqx.field(default=20, static=True)
    damping: float | Array = eqx.field(default=0.0, converter=as_number)
    tolerance: float | Array = eqx.field(default=1e-12, converter=as_number)
    system: Literal["whitened", "preconditioned"] = eqx.field(default="whitened", static=True)

    def __check_init__(self):
        check_at_least("max_steps", self.max_steps, 1)
        check_number("damping", self.damping)
        check_number("tolerance", self.tolerance)
        if self.system not in ("whitened", "preconditioned"):
            raise ValueError(f"CG knows the systems 'whitened' and 'preconditioned', got {self.system!r}.")

    def solve(self, hessian: ProductFn, gradient: Params, prior: Prior) -> tuple[Params, LinearStats]:
        """dφ for the gradient g = `gradient` and the Hessian-vector product `hessian`."""
        dtype = accumulation_dtype(gradient)
        # The system is linear, and the scale of an inner product is free: with both the right-hand side and the largest
        # variance at 1, squares do not underflow, nor do 16-bit products overflow, whatever the two are.
        size = _or_one(jnp.max(jnp.stack([jnp.max(jnp.abs(g)).astype(dtype) for g in jax.tree.leaves(gradient)])))
        rhs = jax.tree.map(lambda g: g.astype(dtype) / size, gradient)
        variance = prior.variance.astype(dtype)
        if self.system == "whitened":
            metric, weight = variance, jnp.ones_like(variance)
        else:
            # One over the preconditioner, and that over the variance. A frozen module is no part of the system.
            metric = jnp.minimum(1e3 * variance, 1)
            weight = jnp.where(prior.frozen, 0, jnp.minimum(1e3, jnp.exp(-prior.log_variance.astype(dtype))))
        largest = _or_one(jnp.max(metric))
        metric_tree, weight_tree = prior.modules.expand(metric), prior.modules.expand(weight)
        share_tree = prior.modules.expand(metric / largest)

        def operator(q: Params) -> Params:
            primal = jax.tree.map(jnp.multiply, share_tree, q)
            product = hessian(jax.tree.map(lambda p, g: p.astype(g.dtype), primal, gradient))
            return jax.tree.map(
                lambda w, x, h, p: w * x + largest * (h.astype(dtype) + self.damping * p),
                weight_tree,
                q,
                product,
                primal,
            )

        def dot(a: Params, b: Params) -> Array:
            return tree_dot(a, jax.tree.map(jnp.multiply, share_tree, b))

        tolerance = jnp.maximum(jnp.asarray(self.tolerance, dtype), jnp.finfo(dtype).eps)
        end = _iterate(operator, dot, rhs, self.max_steps, tolerance)
        # What is left if the Hessian is left out.
        diagonal = jax.tree.map(
            lambda b, w, m: b / jnp.where(w > 0, w + self.damping * m, 1),
            rhs,
            weight_tree,
            metric_tree,
        )
        solution = tree_where(end.negative_curvature & (end.num_steps == 0), diagonal, end.solution)
        residual = jnp.sqrt(end.square / jnp.where(end.first_square > 0, end.first_square, 1))
        if self.system == "whitened":
            solution = _finish(solution, end, residual, metric, prior)
        else:
            # In a frozen module dφ = g - (H + d)x with x the displacement of the others: just what the residual holds.
            frozen = prior.modules.expand(prior.frozen.astype(dtype))
            solution = jax.tree.map(lambda w, x, r, f: w * x + f * r, weight_tree, solution, end.residual, frozen)
        solution = jax.tree.map(lambda x, g: (size * x).astype(g.dtype), solution, gradient)
        return solution, LinearStats(end.num_steps, residual, end.negative_curvature)


class _State(NamedTuple):
    solution: Params
    residual: Params
    direction: Params
    square: Array
    first_square: Array
    sharpness: Array
    num_steps: Array
    negative_curvature: Array


def _iterate(
    operator: ProductFn, dot: Callable[[Params, Params], Array], rhs: Params, max_steps: int, tolerance: Array
) -> _State:
    square = dot(rhs, rhs)
    start = _State(
        solution=jax.tree.map(jnp.zeros_like, rhs),
        residual=rhs,
        direction=rhs,
        square=square,
        first_square=square,
        sharpness=jnp.zeros_like(square),
        num_steps=jnp.zeros((), jnp.int32),
        negative_curvature=jnp.zeros((), bool),
    )

    def proceed(state: _State) -> Array:
        unsolved = state.square > tolerance**2 * state.first_square
        return (state.num_steps < max_steps) & unsolved & ~state.negative_curvature

    def step(state: _State) -> _State:
        image = operator(state.direction)
        curvature = dot(state.direction, image)
        negative = ~(curvature > 0)
        alpha = state.square / jnp.where(negative, 1, curvature)
        residual = tree_axpy(-alpha, image, state.residual)
        square = dot(residual, residual)
        direction = tree_axpy(square / state.square, state.direction, residual)
        taken = _State(
            solution=tree_axpy(alpha, state.direction, state.solution),
            residual=residual,
            direction=direction,
            square=square,
            first_square=state.first_square,
            sharpness=jnp.maximum(state.sharpness, curvature / dot(state.direction, state.direction) - 1),
            num_steps=state.num_steps + 1,
            negative_curvature=negative,
        )
        return tree_where(negative, state._replace(negative_curvature=negative), taken)

    return jax.lax.while_loop(proceed, step, start)


def _or_one(value: Array) -> Array:
    """To divide by: anything but a positive number leaves things as they are."""
    return jnp.where((value > 0) & jnp.isfinite(value), value, 1)


def _finish(solution: Params, end: _State, residual: Array, variance: Float[Array, " modules"], prior: Prior) -> Params:
    # CG measures its residual r in a norm that hardly sees the modules of small variance (and never the frozen ones).
    # There the matrix is close to the identity, so one Jacobi step, x + r, settles them. It must fade where the
    # variance is large, since r is then far from the error, and while the solve is unfinished, so that one CG step
    # with equal variances stays in the direction of the gradient.
    share = variance / jnp.where(jnp.max(variance) > 0, jnp.max(variance), 1)
    weight = (1 - share) / (1 + end.sharpness * share) * jnp.maximum(1 - residual, 0)
    return jax.tree.map(lambda x, r, w: x + w * r, solution, end.residual, prior.modules.expand(weight))
