"""Learners from a configuration: the part that all meta-learning experiments share."""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import optax

from .._adjoint import FirstOrder, Implicit, Unroll
from .._algorithms import fomaml, imaml, maml, meta_sgd, reptile, sigma_imaml, sigma_maml, sigma_reptile
from .._averaging import Averaged
from .._backtracking import ProximalBacktracking
from .._diagonal import Diagonal
from .._learner import Learner
from .._linear import CG
from .._solver import AbstractSolver, ProximalAdam, ProximalGD
from .._types import SampleFn
from ..runs.errors import UserError

SIGMA = ("sigma-maml", "sigma-imaml", "sigma-reptile")
PLAIN = ("maml", "imaml", "reptile")


@dataclass(frozen=True)
class LearnerConfig:
    """The fields every meta-learning experiment has; an experiment's `Config` adds its own."""

    algorithm: str
    """Which learner."""
    seed: int = 0
    """Seed of the first of the runs that go together; the others count up from it."""
    num_updates: int = 1000
    """Meta-updates."""
    tasks_per_update: int = 5
    """Tasks in a meta-update."""
    mean_optimiser: Literal["adam", "sgd"] = "adam"
    """Meta-optimiser of the mean."""
    mean_rate: float = 1e-3
    """Its learning rate."""
    mean_epsilon: float = 1e-8
    """Adam's ε for the mean: gradients below it move the mean by less than the rate."""
    weight_decay: float = 0.0
    """Weight decay of the mean, the paper's log p(φ): what no task holds in place drifts in long training."""
    variance_rate: float = 1e-2
    """Adam's learning rate for the log-variances (for Meta-SGD: for the step sizes)."""
    decay: float = 0.0
    """Share of the updates, at the end, over which both rates fall linearly to zero."""
    fall: float = 1.0
    """Factor by which both rates fall exponentially over the whole run, besides."""
    warmup: int = 0
    """Hold the variances for so many updates."""
    settle: float = 1.0
    """Share of the updates after which the variances stay: their rate falls as if the run ended there."""
    variance: float = 1.0
    """Initial variance of every module; for imaml its constant 1/λ."""
    regulariser: float = 1e-5
    """β of the inverse-gamma penalty on the variances."""
    solver: Literal["gd", "adam", "backtracking"] = "gd"
    """Inner solver, all of them proximal; backtracking is gd with a step size of the task's own making."""
    inner_rate: float = 0.01
    """Its learning rate."""
    inner_steps: int = 100
    """Steps of adaptation in meta-training."""
    average: int = 0
    """Held-out tasks are judged by the average over about so many last steps (0: by the last step)."""
    average_training: bool = False
    """The same in meta-training; goes with --last-steps 0."""
    power_steps: int = 0
    """Power iterations a step for a curvature-safe step size (gd only; 0 is off)."""
    cg_steps: int = 5
    """Conjugate-gradient steps of the implicit gradient; 0 leaves the Hessian out (σ-Reptile)."""
    diagonal: bool = False
    """σ-Reptile: solve by the Hessian's diagonal, which --solver adam knows, instead of by conjugate gradients."""
    hessian_batches: int = 1
    """σ-Reptile: mini-batches that the Hessian of the implicit gradient is averaged over."""
    damping: float = 0.0
    """Damping of the implicit gradient."""
    last_steps: int = 0
    """σ-Reptile, σ-iMAML: take the variances' gradient through so many last steps, not implicitly (0 is off)."""
    max_task_norm: float | None = None
    """Clip each task's meta-gradient to this norm."""
    keep_best: bool = False
    """Hand on the prior with the least query loss, measured on tasks before they are learned from, not the last one."""
    adapt_steps: int = 100
    """Steps of adaptation at which held-out tasks are scored."""
    num_test_tasks: int = 100
    """Held-out tasks."""


def make_solver(config: LearnerConfig) -> AbstractSolver:
    """For held-out tasks."""
    solver = _last_iterate(config)
    return Averaged(solver, config.average) if config.average else solver


def _last_iterate(config: LearnerConfig) -> AbstractSolver:
    if config.solver == "adam":
        return ProximalAdam(config.inner_rate)
    if config.solver == "backtracking":
        return ProximalBacktracking(config.inner_rate)
    return ProximalGD(config.inner_rate, power_steps=config.power_steps)


def make_learner(
    config: LearnerConfig, *, sample: SampleFn | None = None, query_sample: SampleFn | None = None
) -> Learner:
    if config.average_training and not config.average:
        raise UserError("--average-training needs to know over how many steps: add --average.")
    if config.average_training and config.last_steps:
        raise UserError(
            "--average-training goes with --last-steps 0: the last steps are a part of the average only, and their "
            "derivative is no derivative of it."
        )
    if config.diagonal and (config.algorithm != "sigma-reptile" or config.solver != "adam" or config.last_steps):
        raise UserError("--diagonal is for sigma-reptile with --solver adam and --last-steps 0.")
    implicit = config.algorithm == "sigma-reptile" and not config.last_steps and (config.diagonal or config.cg_steps)
    if config.hessian_batches > 1 and not implicit:
        raise UserError("--hessian-batches is for the implicit gradient of sigma-reptile: --diagonal, or --cg-steps.")
    if not 0 < config.settle <= 1:
        raise UserError(f"`settle` is a share of the updates, above 0 and at most 1; got {config.settle:g}.")
    mean_rate = _schedule(config, config.mean_rate, config.num_updates)
    variance_rate = _schedule(config, config.variance_rate, int(config.settle * config.num_updates))
    # Decoupled from Adam's normalisation, as in AdamW.
    optimiser = optax.chain(
        optax.scale_by_adam(eps=config.mean_epsilon) if config.mean_optimiser == "adam" else optax.identity(),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(mean_rate),
    )
    solver = make_solver(config) if config.average_training else _last_iterate(config)
    common: dict[str, Any] = {
        "num_steps": config.inner_steps,
        "optimiser": optimiser,
        "max_task_norm": config.max_task_norm,
        "sample": sample,
        "query_sample": query_sample,
    }
    adam = optax.adam(variance_rate)
    unroll = Unroll(last=config.last_steps, mixed=True) if config.last_steps else None
    learned = {"variance_optimiser": adam, "warmup": config.warmup, "regulariser": config.regulariser}
    match config.algorithm:
        case "sigma-maml":
            return sigma_maml(solver, **common, **learned)
        case "sigma-imaml":
            return sigma_imaml(solver, linear_solver=_cg(config), variance_adjoint=unroll, **common, **learned)
        case "sigma-reptile":
            return sigma_reptile(solver, variance_adjoint=unroll or _variance_adjoint(config), **common, **learned)
        case "maml":
            return maml(solver, **common)
        case "fomaml":
            return fomaml(solver, **common)
        case "imaml":
            return imaml(solver, linear_solver=_cg(config), **common)
        case "reptile":
            return reptile(solver, **common)
        case "meta-sgd":
            return meta_sgd(solver, rate_optimiser=adam, **common)
    raise ValueError(f"Unknown algorithm {config.algorithm!r}.")


def _schedule(config: LearnerConfig, peak: Any, num_updates: int) -> Any:
    """A rate that falls as the configuration says, and is zero from `num_updates` on."""
    falling = int(config.decay * num_updates)
    if not falling and config.fall == 1 and num_updates == config.num_updates:
        return peak
    linear = optax.linear_schedule(peak, 0.0, falling, transition_begin=num_updates - falling)
    exponential = optax.exponential_decay(1.0, num_updates, 1 / config.fall)
    return lambda count: jnp.where(count < num_updates, linear(count) * exponential(count), 0.0)


def _variance_adjoint(config: LearnerConfig) -> Implicit | FirstOrder:
    if config.diagonal:
        return Implicit(Diagonal(config.damping), batches=config.hessian_batches)
    return Implicit(_cg(config), batches=config.hessian_batches) if config.cg_steps else FirstOrder()


def _cg(config: LearnerConfig) -> CG:
    if config.cg_steps < 1:
        raise UserError(f"{config.algorithm} needs --cg-steps of at least 1, got {config.cg_steps}.")
    return CG(max_steps=config.cg_steps, damping=config.damping)
