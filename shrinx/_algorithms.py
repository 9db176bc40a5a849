"""The algorithms by name. Each is a `Learner` put together from parts; none has code of its own."""

import math
from collections.abc import Iterable
from typing import Literal, TypedDict, Unpack

import optax
from jaxtyping import Array

from ._adjoint import AbstractAdjoint, FirstOrder, Implicit, Unroll
from ._learner import Learner
from ._linear import CG
from ._metagradient import Predictive, Reptile
from ._select import Selection
from ._solver import AbstractSolver
from ._types import SampleFn


class LearnerOptions(TypedDict, total=False):
    """The options of [`Learner`][shrinx.Learner] that every algorithm takes."""

    learned: str | Iterable[str] | Selection | None
    warmup: int
    variance_range: tuple[float, float]
    regulariser: float | Array
    max_task_norm: float | Array | None
    divergence: float | Array
    sample: SampleFn | None
    query_sample: SampleFn | None
    trainable: str | Iterable[str] | Selection | None
    chunk_size: int | None


def sigma_maml(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    variance_optimiser: optax.GradientTransformation,
    checkpoint: bool = True,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """σ-MAML: learn mean and variances by backpropagation through adaptation.

    **Arguments:** `solver`, `num_steps`: the inner loop; `optimiser`, `variance_optimiser`: optax optimisers for the
    mean and the log-variances; `checkpoint`: see [`Unroll`][shrinx.Unroll]; `options`: see [`Learner`][shrinx.Learner].

    **Returns:** a `Learner`. Reference: Chen, Friesen et al. 2020, equation 6.

    >>> import optax, shrinx as sx
    >>> learner = sx.sigma_maml(
    ...     sx.ProximalGD(1e-3), num_steps=68, optimiser=optax.adam(1e-3), variance_optimiser=optax.adam(4e-3)
    ... )
    """
    return Learner(
        Predictive(Unroll(checkpoint)),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        variance_optimiser=variance_optimiser,
        **options,
    )


def sigma_imaml(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    variance_optimiser: optax.GradientTransformation,
    linear_solver: CG = CG(),
    variance_adjoint: Unroll | FirstOrder | None = None,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """σ-iMAML: learn mean and variances by the implicit gradient, for horizons of any length.

    **Arguments:** as `sigma_maml`; `linear_solver`: a [`CG`][shrinx.CG] with its damping and number of steps;
    `variance_adjoint`: another way to the gradient of the variances, as in `sigma_reptile`.

    **Returns:** a `Learner`. Reference: Chen, Friesen et al. 2020, equation 7.

    >>> import optax, shrinx as sx
    >>> learner = sx.sigma_imaml(
    ...     sx.ProximalGD(0.1), num_steps=100, optimiser=optax.adam(1e-3), variance_optimiser=optax.adam(1e-2),
    ...     linear_solver=sx.CG(max_steps=5, damping=0.1),
    ... )
    """
    return Learner(
        Predictive(Implicit(linear_solver, variance_adjoint=variance_adjoint)),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        variance_optimiser=variance_optimiser,
        **options,
    )


def sigma_reptile(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    variance_optimiser: optax.GradientTransformation,
    linear_solver: CG | None = None,
    variance_adjoint: AbstractAdjoint | None = None,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """σ-Reptile: the mean moves towards adapted parameters, by (φ - θ̂)/σ²; the variances by the implicit gradient.

    **Arguments:** as `sigma_imaml`; `variance_adjoint`: another way to the gradient of the variances. The implicit one
    assumes that adaptation has converged; where it ends in the noise of mini-batches, `Unroll(last=20)` is a better
    judge. Because of the division by σ², prefer an `optimiser` that does not mind the scale of a gradient (Adam), or a
    plain SGD rate proportional to σ².

    **Returns:** a `Learner`. Reference: Chen, Friesen et al. 2020, equation 10.

    >>> import optax, shrinx as sx
    >>> learner = sx.sigma_reptile(
    ...     sx.ProximalGD(0.1), num_steps=100, optimiser=optax.adam(1e-3), variance_optimiser=optax.adam(1e-2)
    ... )
    """
    if variance_adjoint is not None and linear_solver is not None:
        raise ValueError("`linear_solver` is of the implicit gradient, which `variance_adjoint` replaces: give one.")
    return Learner(
        Reptile(Implicit(linear_solver or CG()) if variance_adjoint is None else variance_adjoint),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        variance_optimiser=variance_optimiser,
        **options,
    )


def maml(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    checkpoint: bool = True,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """MAML: σ-MAML with infinite variances, whatever variances the prior has when it is handed in.

    **Arguments:** as `sigma_maml`. **Returns:** a `Learner`. Reference: Finn et al. 2017.

    >>> import optax, shrinx as sx
    >>> learner = sx.maml(sx.ProximalGD(0.01), num_steps=5, optimiser=optax.adam(1e-3))
    """
    return Learner(
        Predictive(Unroll(checkpoint)),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        variance=math.inf,
        **options,
    )


def fomaml(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """First-order MAML: the query gradient at the adapted parameters, without second derivatives; no prior.

    **Arguments:** as `maml`. **Returns:** a `Learner`. Reference: Finn et al. 2017.

    >>> import optax, shrinx as sx
    >>> learner = sx.fomaml(sx.ProximalGD(0.01), num_steps=5, optimiser=optax.adam(1e-3))
    """
    return Learner(
        Predictive(FirstOrder()), solver, num_steps=num_steps, optimiser=optimiser, variance=math.inf, **options
    )


def imaml(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    linear_solver: CG = CG(),
    regularisation: float | None = None,
    **options: Unpack[LearnerOptions],
) -> Learner:
    r"""iMAML: σ-iMAML with one constant variance 1/λ for all modules.

    The meta-gradient is $((1 + d/\lambda) I + H/\lambda)^{-1} g$ with d the `damping` of the linear solver; the damping
    that the iMAML paper writes as 1 + d is therefore `damping = d λ` here.

    **Arguments:** as `sigma_imaml`; `regularisation`: λ. `None` takes the variances of the prior handed in.

    **Returns:** a `Learner`. Reference: Rajeswaran et al. 2019.

    >>> import optax, shrinx as sx
    >>> learner = sx.imaml(sx.ProximalGD(0.01), num_steps=16, optimiser=optax.adam(1e-3), regularisation=2.0)
    """
    if regularisation is not None and not regularisation > 0:
        raise ValueError(f"`regularisation` must be positive, got {regularisation}; without any, use `maml`.")
    return Learner(
        Predictive(Implicit(linear_solver)),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        variance=None if regularisation is None else 1 / float(regularisation),
        **options,
    )


def reptile(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    variance: float | None = math.inf,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """Reptile: the mean moves by φ - θ̂. Adapts to `task.support` alone, so put all of a task's data there.

    **Arguments:** as `maml`; `variance`: Reptile has no prior (`inf`). With a finite variance, or `None` for those of
    the prior handed in, it is σ-Reptile with an SGD rate proportional to σ² and nothing else learned.

    **Returns:** a `Learner`. Reference: Nichol et al. 2018.

    >>> import optax, shrinx as sx
    >>> learner = sx.reptile(sx.ProximalAdam(1e-3), num_steps=10, optimiser=optax.sgd(1.0))
    """
    return Learner(
        Reptile(None, scaled=False), solver, num_steps=num_steps, optimiser=optimiser, variance=variance, **options
    )


def meta_sgd(
    solver: AbstractSolver,
    *,
    num_steps: int,
    optimiser: optax.GradientTransformation,
    rate_optimiser: optax.GradientTransformation,
    rates: Literal["parameter", "module"] = "parameter",
    checkpoint: bool = True,
    **options: Unpack[LearnerOptions],
) -> Learner:
    """Meta-SGD: MAML that also learns a step size per parameter or per module.

    The learned numbers, `state.prior.rates`, multiply the solver's `learning_rate` and start at 1: with
    `ProximalGD(0.01)` every step size starts at 0.01. With equal rates this is MAML.

    **Arguments:** as `maml`; `rate_optimiser`: an optax optimiser for the rates; `rates`: one per `"parameter"` or
    one per `"module"`.

    **Returns:** a `Learner`. Reference: Li et al. 2017.

    >>> import optax, shrinx as sx
    >>> learner = sx.meta_sgd(
    ...     sx.ProximalGD(0.01), num_steps=5, optimiser=optax.adam(1e-3), rate_optimiser=optax.adam(1e-2)
    ... )
    """
    return Learner(
        Predictive(Unroll(checkpoint)),
        solver,
        num_steps=num_steps,
        optimiser=optimiser,
        rate_optimiser=rate_optimiser,
        rates=rates,
        variance=math.inf,
        **options,
    )
