"""The Gaussian prior over task parameters: what meta-learning learns and what adaptation is held by."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float

from ._modules import Modules, Restriction, _checked_leaves, accumulation_dtype, by_layer
from ._types import AnyTree, Params, Scalar


class Prior(eqx.Module):
    r"""A Gaussian prior per module, $\theta_m \sim \mathcal{N}(\phi_m, \sigma_m^2 I)$.

    Everything that is learned across tasks lives here: where adaptation starts (`mean`, φ), how far each module may
    move (`log_variance`, log σ²) and, for Meta-SGD only, how fast (`rates`). A meta-gradient is a `Prior` too.

    Both limits are exact, in value and in derivative. Variance 0 (`log_variance = -inf`) freezes a module; variance
    +inf is no prior at all. Neither is moved by a meta-optimiser.

    **The scale of the loss.** The prior is relative to `loss_fn` as it is given. When `loss_fn` is the *sum* of the
    negative log-likelihoods of the support set, σ² is the variance of the Bayesian model. When it is their *mean*
    over N examples (the custom with networks), the same behaviour has a variance N times larger: scaling the loss
    by c equals scaling all variances by 1/c (and the step size of gradient descent likewise). A prior that was learned
    with a mean over N and meets a task of n examples is for that task `prior.scale_variance(n / N)`.

    **Attributes:**

    - `mean`: parameters shared by all tasks.
    - `log_variance`: one number per module, shape `[modules]`.
    - `modules`: the partition of the parameters.
    - `rates`: multipliers of the solver's step size, per module (`[modules]`) or per parameter (a tree like `mean`);
      `None` means 1.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"w": jnp.ones(3), "b": jnp.zeros(1)}, variance={"w": 4.0, "b": 0.0})
    >>> prior.modules.names, prior.variance
    (('b', 'w'), Array([0., 4.], dtype=float32))
    """

    mean: Params
    log_variance: Float[Array, " modules"]
    modules: Modules = eqx.field(static=True)
    rates: Params | None = None

    @staticmethod
    def create(
        params: AnyTree,
        *,
        modules: Modules | None = None,
        variance: ArrayLike | Mapping[str, float] = 1.0,
    ) -> "Prior":
        """A prior around `params`.

        **Arguments:**

        - `params`: a pytree of floating arrays, the first mean.
        - `modules`: their partition; `by_layer(params)` by default.
        - `variance`: one number for all modules, an array of shape `[modules]`, or a mapping from every module's
          name to its variance. Zero freezes a module, `inf` removes the prior from it. Number and array may be traced.

        **Returns:** a `Prior`.
        """
        modules = by_layer(params) if modules is None else modules
        if not isinstance(modules, Modules):
            raise TypeError(f"`modules` must be a partition such as `by_layer(params)`, got {type(modules).__name__}.")
        modules.check(params)
        _checked_leaves(params)
        # With a type of its own, since a weak one would not outlive the first update, and all be compiled anew.
        mean = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), params)
        _check_numbers(modules, mean)
        dtype = accumulation_dtype(mean)
        if isinstance(variance, Tracer):
            log_variance = jnp.broadcast_to(jnp.log(variance), (len(modules),))
        else:
            with np.errstate(divide="ignore"):
                log_variance = np.log(_checked_variance(variance, modules))
        return Prior(mean=mean, log_variance=jnp.asarray(log_variance, dtype), modules=modules)

    @property
    def variance(self) -> Float[Array, " modules"]:
        return jnp.exp(self.log_variance)

    @property
    def frozen(self) -> Bool[Array, " modules"]:
        """Modules with variance 0."""
        return jnp.isneginf(self.log_variance)

    @property
    def is_flat(self) -> bool:
        """Whether all variances are infinite and known to be so before anything runs: then the prior costs nothing."""
        return not isinstance(self.log_variance, Tracer) and bool(np.all(np.isposinf(self.log_variance)))

    def displacement(self, params: Params) -> Params:
        """θ - φ."""
        self.modules.check(params)
        return jax.tree.map(jnp.subtract, params, self.mean)

    def zeros(self) -> Params:
        """Zeros like the parameters, for what adds up over many steps: never in less precision than the variances.

        >>> import jax.numpy as jnp, shrinx as sx
        >>> sx.Prior.create(jnp.ones(2, jnp.bfloat16)).zeros()
        Array([0., 0.], dtype=float32)
        """

        def zeros_for(leaf: Array) -> Array:
            short = leaf.dtype.itemsize < self.log_variance.dtype.itemsize
            return jnp.zeros(leaf.shape, self.log_variance.dtype if short else leaf.dtype)

        return jax.tree.map(zeros_for, self.mean)

    def at(self, displacement: Params) -> Params:
        """φ + δ, in the precision of φ."""

        def move(phi, delta):
            wide = max(phi.dtype, delta.dtype, key=lambda dtype: dtype.itemsize)
            return (phi.astype(wide) + delta.astype(wide)).astype(phi.dtype)

        return jax.tree.map(move, self.mean, displacement)

    def precision(self) -> Float[Array, " modules"]:
        """1/σ² of every module; 0 for the frozen ones, whose displacement is 0 anyway."""
        return _reciprocal(jnp.where(self.frozen, jnp.inf, self.log_variance))

    def module_energy(self, params: Params) -> Float[Array, " modules"]:
        """`energy`, module by module."""
        return module_energies(self, self.displacement(params))

    def energy(self, params: Params) -> Scalar:
        r"""The quadratic part of the negative log density, $\sum_m \|\theta_m - \phi_m\|^2 / 2\sigma_m^2$.

        This is what is added to the loss of a task. It is infinite where a frozen module has moved.

        >>> import jax.numpy as jnp, shrinx as sx
        >>> sx.Prior.create(jnp.zeros(2), variance=0.5).energy(jnp.array([3.0, 4.0]))
        Array(25., dtype=float32)
        """
        return jnp.sum(self.module_energy(params))

    def log_density(self, params: Params) -> Scalar:
        r"""$\log p(\theta | \phi, \sigma^2) = -\sum_m [\tfrac{D_m}{2}\log(2\pi\sigma_m^2)] - \mathrm{energy}(\theta)$.

        At the mean it grows without bound as a variance goes to 0. That is why the variances must not be estimated
        by maximising the joint density (the paper's first lemma).

        >>> import jax.numpy as jnp, shrinx as sx
        >>> round(float(sx.Prior.create(jnp.zeros(2)).log_density(jnp.zeros(2))), 3)
        -1.838
        """
        sizes = jnp.asarray(self.modules.sizes, self.log_variance.dtype)
        normaliser = 0.5 * sizes * (math.log(2 * math.pi) + self.log_variance)
        energy = self.energy(params)
        return jnp.where(jnp.isposinf(energy), -jnp.inf, -jnp.sum(normaliser) - energy)

    def steps(self, rate: ArrayLike) -> Params:
        """The step size of every parameter: `rate`, times the learned `rates` where there are any.

        The leaves have the dtype of the prior's variances and broadcast against the leaves of `mean`.
        """
        rate = jnp.asarray(rate, self.log_variance.dtype)
        if self.rates is None:
            return self.modules.expand(jnp.full(len(self.modules), rate))
        rates = self.modules.expand(self.rates) if self.has_module_rates else self.rates
        return jax.tree.map(lambda r: rate * r.astype(rate.dtype), rates)

    @property
    def has_module_rates(self) -> bool:
        if not isinstance(self.rates, jax.Array) or self.rates.shape != (len(self.modules),):
            return False
        # A lone array of parameters has rates of its own shape; with one module per entry both readings agree.
        return not self.is_module_shaped

    @property
    def is_module_shaped(self) -> bool:
        """Whether the parameters are one array of one entry per module: rates of either kind are then the same."""
        return isinstance(self.mean, jax.Array) and self.mean.shape == (len(self.modules),)

    def shrink(self, displacement: Params, steps: Params) -> Params:
        """The proximal step as seen from the mean: δ / (1 + step/σ²), with `steps` as made by `self.steps`."""
        if self.is_flat:
            return displacement

        def shrink_leaf(delta, log_variance, step):
            # Not by the factor alone: the gradient of a frozen module may be infinite.
            delta = jnp.where(jnp.isneginf(log_variance), 0, delta)
            return delta * _shrinkage(log_variance, step).astype(delta.dtype)

        return jax.tree.map(shrink_leaf, displacement, self.modules.expand(self.log_variance), steps)

    def prox(self, params: Params, step_size: ArrayLike) -> Params:
        r"""The proximal step of `energy`: $\phi + (\theta - \phi) / (1 + \alpha/\sigma^2)$.

        It is the minimiser over x of `energy(x) + |x - params|² / (2 step_size)`.

        >>> import jax.numpy as jnp, shrinx as sx
        >>> sx.Prior.create(jnp.zeros(2), variance=1.0).prox(jnp.array([2.0, 4.0]), 1.0)
        Array([1., 2.], dtype=float32)
        """
        steps = self.steps(step_size)

        def prox_leaf(theta, phi, log_variance, step):
            factor = _shrinkage(log_variance, step).astype(theta.dtype)
            # phi + (theta - phi) need not round to theta.
            return jnp.where(factor == 1, theta, phi + (theta - phi) * factor)

        return jax.tree.map(prox_leaf, params, self.mean, self.modules.expand(self.log_variance), steps)

    def restrict(self, names: str | Iterable[str]) -> tuple["Prior", Restriction]:
        """The prior of some modules only, and the `Restriction` that cuts and merges trees accordingly."""
        restriction = self.modules.restrict(names)
        rows = np.asarray(restriction.indices, np.int32)
        rates = self.rates
        if rates is not None:
            rates = rates[rows] if self.has_module_rates else restriction.extract(rates)
        prior = Prior(
            mean=restriction.extract(self.mean),
            log_variance=self.log_variance[rows],
            modules=restriction.part,
            rates=rates,
        )
        return prior, restriction

    def scale_variance(self, factor: ArrayLike) -> "Prior":
        """The same prior with all variances times `factor`: see above, "the scale of the loss".

        >>> import jax.numpy as jnp, shrinx as sx
        >>> prior = sx.Prior.create({"w": jnp.ones(3), "b": jnp.zeros(1)}, variance={"w": 4.0, "b": 0.0})
        >>> prior.scale_variance(2).variance
        Array([0., 8.], dtype=float32)
        """
        if not eqx.is_array_like(factor):
            raise TypeError(f"`factor` must be a number, got {factor!r}.")
        if jnp.ndim(factor) != 0:
            raise ValueError(f"`factor` must be one number, got an array of shape {jnp.shape(factor)}.")
        if not isinstance(factor, Tracer) and not 0 < np.asarray(factor) < math.inf:
            raise ValueError(f"`factor` must be positive and finite, got {factor}.")
        log_variance = self.log_variance + jnp.log(jnp.asarray(factor, self.log_variance.dtype))
        return Prior(mean=self.mean, log_variance=log_variance, modules=self.modules, rates=self.rates)

    def freeze_all_but(self, names: str | Iterable[str]) -> "Prior":
        """The same prior with variance 0 in every module outside `names`."""
        free = np.zeros(len(self.modules), dtype=bool)
        free[list(self.modules.indices(names))] = True
        log_variance = jnp.where(free, self.log_variance, -jnp.inf)
        return Prior(mean=self.mean, log_variance=log_variance, modules=self.modules, rates=self.rates)


def module_energies(prior: Prior, displacement: Params) -> Float[Array, " modules"]:
    """`Prior.module_energy` of φ + δ, without the rounding of φ."""
    dtype = prior.log_variance.dtype
    squares = prior.modules.sum(jax.tree.map(lambda d: jnp.square(d.astype(dtype)), displacement))
    forbidden = jnp.where(squares > 0, jnp.inf, 0.0).astype(squares.dtype)
    return jnp.where(prior.frozen, forbidden, 0.5 * prior.precision() * squares)


def inverse_gamma_penalty(log_variance: Float[Array, " modules"], scale: float | Array) -> Scalar:
    r"""A weak regulariser that pulls idle variances down, $-\beta \log \mathrm{IG}(\sigma^2; 1, \beta)$.

    Up to a constant, with shape 1 and scale β this is $\sum_m \beta (2 \log \sigma_m^2 + \beta / \sigma_m^2)$, which
    is smallest at σ² = β/2.
    (The paper prints the sign of the penalty the other way round; it is meant to shrink.)

    **Arguments:** `log_variance`, shape `[modules]`; `scale`, β. Infinite variances contribute nothing.

    **Returns:** a scalar to add to the meta-loss.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> sx.inverse_gamma_penalty(jnp.zeros(2), scale=0.5)
    Array(0.5, dtype=float32)
    """
    finite = jnp.isfinite(log_variance)
    log_variance = jnp.where(finite, log_variance, 0.0)
    penalty = scale * (2 * log_variance + scale * _reciprocal(log_variance))
    return jnp.sum(jnp.where(finite, penalty, 0.0))


def _reciprocal(log_variance: Array) -> Array:
    """1/σ², kept below overflow: times 0, for a variance too small for the dtype, it is not NaN."""
    smallest = -0.9 * math.log(float(jnp.finfo(log_variance.dtype).max))
    return jnp.exp(-jnp.maximum(log_variance, smallest))


def _shrinkage(log_variance: Array, step: Array) -> Array:
    forward = step > 0
    factor = _shrinkage_forward(log_variance, jnp.where(forward, step, 1))
    # A step that is not positive (a schedule at its end, a learned rate that crossed 0) has no proximal step.
    return jnp.where(jnp.isneginf(log_variance), 0, jnp.where(forward, factor, 1))


@jax.custom_jvp
def _shrinkage_forward(log_variance: Array, step: Array) -> Array:
    """1 / (1 + step/σ²); the exponential is one per module, the rest one per parameter."""
    return 1 / (1 + step * jnp.exp(-log_variance))


@_shrinkage_forward.defjvp
def _shrinkage_forward_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    # It is a sigmoid of log σ² - log step, whose derivative neither overflows nor is NaN for any σ².
    factor, step = _shrinkage_forward(*primals), primals[1]
    return factor, factor * (1 - factor) * (tangents[0] - tangents[1] / step)


def _check_numbers(modules: Modules, mean: Params) -> None:
    """No NaN: every task would fail by it. Infinities are let through, some networks keep masks of them."""
    leaves = jax.tree.leaves(mean)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return
    wrong = [path for path, leaf in zip(modules.paths, leaves, strict=True) if bool(jnp.any(jnp.isnan(leaf)))]
    if wrong:
        raise ValueError(f"`params` are not a number (NaN) in {wrong}: did their training diverge?")


def _checked_variance(variance: Any, modules: Modules) -> np.ndarray:
    if isinstance(variance, Mapping):
        unknown = [name for name in variance if name not in modules.names]
        missing = [name for name in modules.names if name not in variance]
        if unknown or missing:
            raise ValueError(
                f"`variance` must name every module once: unknown {unknown}, missing {missing}; "
                f"known: {list(modules.names)}."
            )
        variance = [variance[name] for name in modules.names]
    values = np.asarray(variance, dtype=np.float64)
    if values.shape not in ((), (len(modules),)):
        raise ValueError(f"`variance` has shape {values.shape}; expected one number or shape ({len(modules)},).")
    values = np.broadcast_to(values, (len(modules),))
    wrong = {name: float(v) for name, v in zip(modules.names, values, strict=True) if not v >= 0}
    if wrong:
        raise ValueError(f"Variances must be 0 or greater, got {wrong}.")
    return values
