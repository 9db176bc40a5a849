"""The outer loop: mean meta-gradient over a batch of tasks, and the update of the prior."""

import math
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ._check import (
    as_integer,
    as_number,
    as_tuple,
    check_at_least,
    check_key,
    check_number,
    check_prior,
    check_sample,
    is_concrete,
)
from ._devices import sum_over_devices
from ._linear import LinearStats
from ._loss import check_loss
from ._metagradient import AbstractMetaGradient, Reptile
from ._modules import accumulation_dtype
from ._prior import Prior, inverse_gamma_penalty
from ._problem import Progress, make_problem, no_progress
from ._rounding import apply, apply_rounded, nothing_cut, whole
from ._select import module_names
from ._solver import AbstractSolver
from ._task import Task, check_arrays, check_tasks
from ._tree import all_finite, tree_norm, tree_where
from ._types import LossFn, Params, SampleFn, Scalar

_VARIANCE_RANGE = (1e-5, 1e5)


class LearnerState(NamedTuple):
    """What meta-learning carries from update to update: the prior, the optimisers' states, the number of updates.

    >>> import jax.numpy as jnp, optax, shrinx as sx
    >>> learner = sx.reptile(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1))
    >>> state = learner.init(sx.Prior.create(jnp.zeros(3)))
    >>> state.prior.mean, int(state.step)
    (Array([0., 0., 0.], dtype=float32), 0)
    """

    prior: Prior
    opt_state: Any
    step: Int[Array, ""]


class LearnerInfo(NamedTuple):
    """What an update saw, task by task. Nothing in here but `progress` is needed to go on.

    `query_loss` is the mean over the healthy tasks. `healthy` is false for a task that was left out of the mean: its
    loss or gradient was not finite, or its adaptation diverged; `num_failed` counts them. `failed_step` is the step of
    adaptation that met something non-finite, -1 if none did (a task that is not healthy in spite of that, and of a
    finite query loss, has diverged or has no finite meta-gradient). `residual` says how far from converged each
    adaptation was (see `Adapted`), `gradient_norm` how large each meta-gradient of the mean was before clipping,
    `linear` how the linear solves went, where there were any, and `progress` how far tasks have come that were gone on
    with (see `Learner`).

    >>> import jax.numpy as jnp, optax, shrinx as sx
    >>> learner = sx.maml(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1))
    >>> loss_fn = lambda theta, x: jnp.sum((theta - x) ** 2)
    >>> tasks = sx.Task(support=jnp.array([[1.0], [jnp.nan]]), query=jnp.ones((2, 1)))
    >>> _, info = learner.gradient(loss_fn, sx.Prior.create(jnp.zeros(1)), tasks)
    >>> int(info.num_failed), info.healthy, info.failed_step
    (1, Array([ True, False], dtype=bool), Array([-1,  0], dtype=int32))
    """

    query_loss: Scalar
    num_failed: Int[Array, ""]
    query_losses: Float[Array, " tasks"]
    support_losses: Float[Array, " tasks"]
    healthy: Bool[Array, " tasks"]
    failed_step: Int[Array, " tasks"]
    residual: Float[Array, " tasks"]
    gradient_norm: Float[Array, " tasks"]
    linear: LinearStats | None
    progress: Progress | None = None


class Learner(eqx.Module):
    r"""A meta-learner: `state = init(prior)`, then `state, info = update(loss_fn, state, tasks, key=key)`.

    All algorithms of the library are this one class with different parts; the functions `sigma_maml`, `sigma_imaml`,
    `sigma_reptile`, `maml`, `fomaml`, `imaml`, `reptile` and `meta_sgd` put it together.

    **Tasks that come back.** Adaptation begins at the mean, in every update anew. Where the tasks are a fixed set
    (speakers, customers, patients), let each go on from where its last update left it: variances are then judged after
    far more steps than an update pays for, and tell modules that overfit late from those that do not. `Task.progress`
    says where to go on, `LearnerInfo.progress` how far it came: of an update's tasks `jax.tree.map(lambda leaf:
    leaf[rows], progress)`, and after it `leaf.at[rows].set(new)`. It is the displacement that is kept, so that tasks
    move with the mean. Steps are counted on (schedules, Adam, averages). Backpropagation ends where the update began:
    prefer implicit or first-order gradients. Hold the variances at first (`warmup`), since short adaptations do not
    overfit and ask for large ones.

    **Arguments:**

    - `meta_gradient`: [`Predictive`][shrinx.Predictive] or [`Reptile`][shrinx.Reptile].
    - `solver`, `num_steps`: the inner loop.
    - `optimiser`: an optax optimiser for the mean.
    - `variance_optimiser`: one for the log-variances; `None` keeps them fixed.
    - `rate_optimiser`, `rates`: one for learned step sizes, and whether there is one rate per `"parameter"` or per
      `"module"` (Meta-SGD).
    - `variance`: impose this variance on all modules, whatever the prior given to `init` says (MAML is `inf`).
    - `learned`: names of the modules whose variance is learned; all by default. Variances of 0 and inf never move.
    - `warmup`: hold the variances for so many updates.
    - `variance_range`: learned variances are clipped to it after every update.
    - `regulariser`: β of the [`inverse_gamma_penalty`][shrinx.inverse_gamma_penalty] on the variances, added in
      `update`, not in `gradient`. The paper uses 1e-5 and 1e-7; the default is none.
    - `max_task_norm`: clip each task's meta-gradient to this norm, mean and log-variances each by themselves.
    - `divergence`: a task is left out when its loss grew and its gradient grew more than so many times; `inf` keeps all
      finite ones. A task with a non-finite loss or gradient is always left out.
    - `sample`: `sample(key, support)` draws the mini-batch of an inner step (and of the Hessian). All data by default.
    - `query_sample`: the same for the query set.
    - `trainable`: names of the modules that adapt in the inner loop; the rest are shared by all tasks.
    - `chunk_size`: a device adapts so many tasks at a time (under `vmap`) and the chunks one after the other, to save
      memory.

    >>> import jax.numpy as jnp, optax, shrinx as sx
    >>> learner = sx.sigma_maml(sx.ProximalGD(0.1), num_steps=20, optimiser=optax.sgd(0.1),
    ...                         variance_optimiser=optax.sgd(0.1))
    >>> state = learner.init(sx.Prior.create(jnp.zeros(1), variance=0.5))
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> tasks = sx.Task(support=jnp.array([[1.0], [3.0]]), query=jnp.array([[1.5], [2.5]]))
    >>> state, info = learner.update(loss_fn, state, tasks)
    >>> int(state.step), info.healthy
    (1, Array([ True,  True], dtype=bool))
    >>> progress = learner.progress(state.prior, num_tasks=2)
    >>> for _ in range(3):
    ...     state, info = learner.update(loss_fn, state, sx.Task(tasks.support, tasks.query, progress=progress))
    ...     progress = info.progress
    >>> progress.displacement.shape, progress.solver.num_steps
    ((2, 1), Array([60, 60], dtype=int32))
    """

    meta_gradient: AbstractMetaGradient
    solver: AbstractSolver
    num_steps: int = eqx.field(static=True, kw_only=True, converter=as_integer)
    optimiser: optax.GradientTransformation = eqx.field(static=True, kw_only=True)
    variance_optimiser: optax.GradientTransformation | None = eqx.field(static=True, kw_only=True, default=None)
    rate_optimiser: optax.GradientTransformation | None = eqx.field(static=True, kw_only=True, default=None)
    rates: Literal["parameter", "module"] | None = eqx.field(static=True, kw_only=True, default=None)
    variance: float | None = eqx.field(static=True, kw_only=True, default=None, converter=as_number)
    learned: tuple[str, ...] | None = eqx.field(static=True, kw_only=True, default=None, converter=module_names)
    warmup: int = eqx.field(static=True, kw_only=True, default=0)
    variance_range: tuple[float, float] = eqx.field(
        static=True, kw_only=True, default=_VARIANCE_RANGE, converter=as_tuple
    )
    regulariser: float | Array = eqx.field(kw_only=True, default=0.0)
    max_task_norm: float | Array | None = eqx.field(kw_only=True, default=None)
    divergence: float | Array = eqx.field(kw_only=True, default=1e3)
    sample: SampleFn | None = eqx.field(static=True, kw_only=True, default=None)
    query_sample: SampleFn | None = eqx.field(static=True, kw_only=True, default=None)
    trainable: tuple[str, ...] | None = eqx.field(static=True, kw_only=True, default=None, converter=module_names)
    chunk_size: int | None = eqx.field(static=True, kw_only=True, default=None)

    def __check_init__(self):
        if not isinstance(self.meta_gradient, AbstractMetaGradient):
            raise TypeError(f"`meta_gradient` must be `Predictive(...)` or `Reptile(...)`, got {self.meta_gradient!r}.")
        if not isinstance(self.solver, AbstractSolver):
            raise TypeError(f"`solver` must be an inner solver such as `ProximalGD(0.1)`, got {self.solver!r}.")
        if self.optimiser is None:
            raise TypeError("`optimiser` moves the mean; to hold that of a pretrained network, `optax.set_to_zero()`.")
        for name in ("optimiser", "variance_optimiser", "rate_optimiser"):
            optimiser = getattr(self, name)
            if optimiser is not None and not isinstance(optimiser, optax.GradientTransformation):
                raise TypeError(f"`{name}` must be an optax optimiser such as `optax.adam(1e-3)`, got {optimiser!r}.")
        check_at_least("num_steps", self.num_steps, 1)
        check_at_least("warmup", self.warmup, 0)
        if self.chunk_size is not None:
            check_at_least("chunk_size", self.chunk_size, 1)
        if self.variance is not None:
            check_number("variance", self.variance)
        check_sample("sample", self.sample)
        check_sample("query_sample", self.query_sample)
        check_number("regulariser", self.regulariser)
        check_number("divergence", self.divergence, positive=True)
        if self.max_task_norm is not None:
            check_number("max_task_norm", self.max_task_norm, positive=True)
        if not isinstance(self.variance_range, tuple) or len(self.variance_range) != 2:
            raise TypeError(
                f"`variance_range` must be two numbers, the least and the greatest, got {self.variance_range}."
            )
        low, high = self.variance_range
        check_number("variance_range", low)
        check_number("variance_range", high)
        if not 0 < low < high:
            raise ValueError(f"`variance_range` must be an interval of positive numbers, got {self.variance_range}.")
        if self.rates not in (None, "parameter", "module"):
            raise ValueError(f"`rates` must be None, 'parameter' or 'module', got {self.rates!r}.")
        if (self.rates is None) != (self.rate_optimiser is None):
            raise ValueError("Learned `rates` and a `rate_optimiser` go together.")
        self._check_parts()

    def _check_parts(self) -> None:
        """What makes no difference is taken for a mistake."""
        regulated = not is_concrete(self.regulariser) or self.regulariser != 0
        about_variances = {
            "learned": self.learned is not None,
            "warmup": self.warmup,
            "regulariser": regulated,
            "variance_range": self.variance_range != _VARIANCE_RANGE,
        }
        idle = [f"`{name}`" for name, given in about_variances.items() if given]
        if self.variance_optimiser is not None and self.variance in (0, math.inf):
            raise ValueError(
                f"`variance_optimiser` makes no difference: variances of {self.variance} never move. Those that learn "
                "variances are `sigma_maml`, `sigma_imaml` and `sigma_reptile`."
            )
        if self.variance_optimiser is None and idle:
            raise ValueError(f"{' and '.join(idle)}: about variances, which only move with a `variance_optimiser`.")
        if self.variance_optimiser is not None and not self.meta_gradient.learns_variances:
            raise ValueError("Plain Reptile has no gradient for variances: use `sigma_reptile`, which learns them.")
        if self.rates is not None and not self.meta_gradient.learns_rates:
            raise ValueError("Learned `rates` need the steps' own gradient: `Predictive(Unroll())`.")
        if isinstance(self.meta_gradient, Reptile) and not self.meta_gradient.scaled and self.trainable is not None:
            raise ValueError("Plain Reptile learns only what adapts, so `trainable` would leave the rest untrained.")

    def init(self, prior: Prior) -> LearnerState:
        """The state before the first update. What this learner fixes (see `variance`, `rates`) is imposed here."""
        prior = self._prepare(prior, begin=True)
        self.meta_gradient.check_prior(self._adapting(prior))
        cut = nothing_cut(prior)
        opt_state = _OptState(
            mean=self.optimiser.init(whole(prior.mean, cut)),
            cut=cut,
            variance=None if self.variance_optimiser is None else self.variance_optimiser.init(_movable(prior)),
            rates=None if self.rate_optimiser is None else self.rate_optimiser.init(cast(Any, prior.rates)),
        )
        return LearnerState(prior=prior, opt_state=opt_state, step=jnp.zeros((), jnp.int32))

    def progress(self, prior: Prior, num_tasks: int) -> Progress:
        """The `Task.progress` of tasks that are all still at the mean.

        **Arguments:** `prior`, `num_tasks`: of all that will come back; every update takes the rows of its own.

        **Returns:** a `Progress` with a leading task axis.
        """
        check_at_least("num_tasks", num_tasks, 1)
        one = self._no_progress(self._prepare(prior))
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_tasks, *jnp.shape(leaf))), one)

    def gradient(
        self, loss_fn: LossFn, prior: Prior, tasks: Task, *, key: PRNGKeyArray | None = None
    ) -> tuple[Prior, LearnerInfo]:
        """The mean meta-gradient over the healthy tasks, as a `Prior`, before regulariser and optimiser.

        **Arguments:** `loss_fn(params, batch)`; `prior`; `tasks`, a `Task` with a leading task axis; `key`, needed
        when mini-batches are drawn. Compiled once per `loss_fn` and shapes: pass the same function, not a new lambda.
        """
        prior = self._prepare(prior)
        self.meta_gradient.check_prior(self._adapting(prior))
        self._check(tasks, key)
        return _gradient(self, loss_fn, prior, tasks, key)

    def update(
        self, loss_fn: LossFn, state: LearnerState, tasks: Task, *, key: PRNGKeyArray | None = None
    ) -> tuple[LearnerState, LearnerInfo]:
        """One meta-update; arguments as in `gradient`. If no task is healthy, prior and optimisers stay as they are."""
        if not isinstance(state, LearnerState):
            raise TypeError(f"`state` must come from `init` or `update`, got {type(state).__name__}.")
        check_prior(state.prior)
        self._check(tasks, key)
        return _update(self, loss_fn, state, tasks, key)

    def _check(self, tasks: Task, key: Any) -> None:
        # Not the variances, which would have to be waited for: `init` has seen them, and no update makes one infinite.
        check_arrays(tasks)
        check_key(key)
        self.meta_gradient.check_query(tasks.query)

    @property
    def _imposed(self) -> float | None:
        """The logarithm of `variance`."""
        if self.variance is None:
            return None
        return math.log(self.variance) if self.variance > 0 else -math.inf

    def _adapting(self, prior: Prior) -> Prior:
        """The part of it that adapts."""
        return prior if self.trainable is None else prior.restrict(self.trainable)[0]

    def _no_progress(self, prior: Prior) -> Progress:
        return no_progress(self._adapting(prior), self.solver)

    def _prepare(self, prior: Prior, *, begin: bool = False) -> Prior:
        """With what this learner imposes; a variance that is learned is only where it begins."""
        check_prior(prior)
        for names in (self.learned, self.trainable):
            prior.modules.indices(names or ())
        log_variance, rates = prior.log_variance, prior.rates
        if self._imposed is not None and (begin or self.variance_optimiser is None):
            log_variance = jnp.full_like(log_variance, self._imposed)
        per_module = self.rates == "module"
        if self.rates is not None and rates is None:
            rates = jnp.ones_like(log_variance) if per_module else jax.tree.map(jnp.ones_like, prior.zeros())
        elif self.rates is not None and per_module != prior.has_module_rates and not prior.is_module_shaped:
            other = "module" if prior.has_module_rates else "parameter"
            raise ValueError(f"The prior has learned rates, one for each {other}; this learner's are by {self.rates}.")
        elif self.rates is not None:  # In 16 bits they would not learn.
            rates = jax.tree.map(lambda rate: rate.astype(accumulation_dtype(rate)), rates)
        return Prior(mean=prior.mean, log_variance=log_variance, modules=prior.modules, rates=rates)


class _OptState(NamedTuple):
    mean: Any
    variance: Any
    rates: Any
    cut: Params
    """What 16 bits have no room for of the mean."""


class _TaskInfo(NamedTuple):
    query_loss: Array
    support_loss: Array
    healthy: Array
    failed_step: Array
    residual: Array
    gradient_norm: Array
    linear: LinearStats | None
    progress: Progress | None


@eqx.filter_jit
def _gradient(
    learner: Learner, loss_fn: LossFn, prior: Prior, tasks: Task, key: PRNGKeyArray | None
) -> tuple[Prior, LearnerInfo]:
    num_tasks = check_tasks(tasks)
    if key is None and (learner.sample is not None or learner.query_sample is not None):
        raise ValueError("`sample` and `query_sample` draw random batches and need a `key`.")
    keys = None if key is None else jax.random.split(key, num_tasks)
    everyone, share = (learner, loss_fn, prior), (Task(tasks.support, tasks.query, progress=tasks.progress), keys)
    sum_up = _sum_over_tasks if tasks.mesh is None else partial(sum_over_devices, _sum_over_tasks, tasks.mesh)
    total, info = sum_up(everyone, share)
    num_healthy = jnp.sum(info.healthy, dtype=jnp.int32)
    gradient = jax.tree.map(lambda g: g / jnp.maximum(num_healthy, 1).astype(g.dtype), total)
    losses = jnp.where(info.healthy, info.query_loss, 0)
    mean_loss = jnp.sum(losses) / num_healthy.astype(losses.dtype)
    return gradient, LearnerInfo(
        query_loss=mean_loss,
        num_failed=num_tasks - num_healthy,
        query_losses=info.query_loss,
        support_losses=info.support_loss,
        healthy=info.healthy,
        failed_step=info.failed_step,
        residual=info.residual,
        gradient_norm=info.gradient_norm,
        linear=info.linear,
        progress=info.progress,
    )


def _of_task(learner: Learner, loss_fn: LossFn, prior: Prior, task: Task, key: Any) -> tuple[Prior, _TaskInfo]:
    support_key, query_key = (None, None) if key is None else jax.random.split(key)
    problem = make_problem(
        loss_fn,
        prior,
        task.support,
        learner.solver,
        num_steps=learner.num_steps,
        key=support_key,
        sample=learner.sample,
        trainable=learner.trainable,
        fixed_log_variance=learner._imposed if learner.variance_optimiser is None else None,
        progress=task.progress,
        what="task.support",
    )
    query = task.query
    if query is not None and learner.query_sample is not None:
        query = learner.query_sample(query_key, query)
    if query is not None:
        check_loss(loss_fn, prior.mean, query)
    gradient, adapted, query_loss, linear = learner.meta_gradient.of_task(problem, query)
    norm = tree_norm(gradient.mean)
    exploded = (adapted.residual > learner.divergence) & ~(adapted.losses[-1] <= adapted.first.loss)
    judged = jnp.isfinite(query_loss) if query is not None else True
    healthy = (adapted.failed_step < 0) & ~exploded & judged & all_finite(gradient)
    if learner.max_task_norm is not None:
        gradient = _clip(gradient, norm, learner.max_task_norm)
    gradient = tree_where(healthy, gradient, jax.tree.map(jnp.zeros_like, gradient))
    progress = adapted.progress
    if progress is not None:
        # A task that failed begins anew.
        progress = tree_where(healthy, progress, learner._no_progress(prior))
    return gradient, _TaskInfo(
        query_loss=query_loss,
        support_loss=adapted.losses[-1],
        healthy=healthy,
        failed_step=adapted.failed_step,
        residual=adapted.residual,
        gradient_norm=norm,
        linear=linear,
        progress=progress,
    )


def _clip(gradient: Prior, norm: Array, largest: float | Array) -> Prior:
    def to_norm(tree: Any, norm: Array) -> Any:
        scale = jnp.minimum(1, largest / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda g: g * scale.astype(g.dtype), tree)

    # Apart, because σ-Reptile divides the mean's part by σ² and the two would drown each other.
    return Prior(
        mean=to_norm(gradient.mean, norm),
        log_variance=to_norm(gradient.log_variance, tree_norm(gradient.log_variance)),
        modules=gradient.modules,
        rates=None if gradient.rates is None else to_norm(gradient.rates, tree_norm(gradient.rates)),
    )


def _sum_over_tasks(everyone: tuple[Learner, LossFn, Prior], share: tuple[Task, Any]) -> tuple[Prior, _TaskInfo]:
    num_tasks, chunk_size = check_tasks(share[0]), everyone[0].chunk_size

    def of_chunk(chunk: Any) -> tuple[Prior, _TaskInfo]:
        gradients, infos = jax.vmap(lambda task: _of_task(*everyone, *task))(chunk)
        return jax.tree.map(lambda g: jnp.sum(g, axis=0), gradients), infos

    if chunk_size is None or chunk_size >= num_tasks:
        return of_chunk(share)
    count = num_tasks // chunk_size
    cut = count * chunk_size
    chunks = jax.tree.map(lambda x: x[:cut].reshape((count, chunk_size, *x.shape[1:])), share)

    def accumulate(total: Prior, chunk: Any) -> tuple[Prior, _TaskInfo]:
        gradient, info = of_chunk(chunk)
        return jax.tree.map(jnp.add, total, gradient), info

    shapes = jax.eval_shape(of_chunk, jax.tree.map(lambda x: x[0], chunks))[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, infos = jax.lax.scan(accumulate, zeros, chunks)
    infos = jax.tree.map(lambda x: x.reshape((cut, *x.shape[2:])), infos)
    if cut < num_tasks:
        rest, rest_infos = of_chunk(jax.tree.map(lambda x: x[cut:], share))
        total = jax.tree.map(jnp.add, total, rest)
        infos = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), infos, rest_infos)
    return total, infos


@eqx.filter_jit
def _update(
    learner: Learner, loss_fn: LossFn, state: LearnerState, tasks: Task, key: PRNGKeyArray | None
) -> tuple[LearnerState, LearnerInfo]:
    prior, opt_state = learner._prepare(state.prior), state.opt_state
    if jax.tree.structure(opt_state) != jax.tree.structure(jax.eval_shape(learner.init, prior).opt_state):
        raise ValueError("`state` is that of another learner or other optimisers: begin with `learner.init(prior)`.")
    gradient, info = _gradient(learner, loss_fn, prior, tasks, key)
    mean, mean_state, cut = apply_rounded(learner.optimiser, gradient.mean, opt_state.mean, prior.mean, opt_state.cut)
    log_variance, variance_state = prior.log_variance, opt_state.variance
    if learner.variance_optimiser is not None:
        log_variance, variance_state = _update_variance(learner, gradient.log_variance, state)
    rates, rates_state = prior.rates, opt_state.rates
    if learner.rate_optimiser is not None:
        rates, rates_state = apply(learner.rate_optimiser, gradient.rates, opt_state.rates, prior.rates)
    new = (
        Prior(mean=mean, log_variance=log_variance, modules=prior.modules, rates=rates),
        _OptState(mean=mean_state, cut=cut, variance=variance_state, rates=rates_state),
    )
    prior, opt_state = tree_where(jnp.any(info.healthy), new, (prior, opt_state))
    return LearnerState(prior=prior, opt_state=opt_state, step=state.step + 1), info


def _update_variance(learner: Learner, gradient: Array, state: LearnerState) -> tuple[Array, Any]:
    assert learner.variance_optimiser is not None
    prior, opt_state = state.prior, state.opt_state.variance
    old = prior.log_variance
    learned = np.ones(len(prior.modules), dtype=bool)
    for names in (learner.learned, learner.trainable):  # What does not adapt has no variance to learn.
        if names is not None:
            learned &= np.isin(np.arange(len(prior.modules)), prior.modules.indices(names))
    moving = learned & jnp.isfinite(old)
    penalty = jax.grad(inverse_gamma_penalty)(old, learner.regulariser)
    gradient = jnp.where(moving, gradient + penalty, 0)
    new, new_state = apply(learner.variance_optimiser, gradient, opt_state, _movable(prior))
    low, high = learner.variance_range
    new = jnp.where(moving, jnp.clip(new, math.log(low), math.log(high)), old)
    return tree_where(state.step < learner.warmup, (old, opt_state), (new, new_state))


def _movable(prior: Prior) -> Array:
    """Log-variances as optimisers see them, some of which take norms: those that never move are 0."""
    return jnp.where(jnp.isfinite(prior.log_variance), prior.log_variance, 0)
