"""One task to adapt to, and the loop that does it: the MAP estimate under the prior, by one scan."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ._check import check_at_least, check_data, check_prior, check_sample
from ._loss import check_loss
from ._mixed import MixedMode
from ._modules import Restriction
from ._prior import Prior
from ._solver import AbstractSolver, StepInfo
from ._tree import stop_gradient, tree_where
from ._types import Data, LossFn, Params, SampleFn

FEW = 8
"""Steps that need no loop, and no segments on the way back."""
SMALL = 3_000
"""Numbers in the state of a small network's adaptation."""


def _nothing(index: Any, params: Params) -> None:
    return None


class Progress(NamedTuple):
    """How far adaptation to a task has come: all it needs to go on. Made by [`Learner.progress`][shrinx.Learner].

    `displacement` from the mean after the last step, before any averaging; `solver`, the inner solver's state; `first`,
    loss and gradient norm of the very first step, by which it is judged whether the task converges (NaN before it).

    >>> import jax.numpy as jnp, optax, shrinx as sx
    >>> learner = sx.reptile(sx.ProximalGD(0.1), num_steps=2, optimiser=optax.sgd(0.1))
    >>> learner.progress(sx.Prior.create(jnp.zeros(3)), num_tasks=5).displacement.shape
    (5, 3)
    """

    displacement: Params
    solver: Any
    first: StepInfo


class Adapted(eqx.Module):
    """The result of adapting to one task.

    **Attributes:**

    - `params`: θ̂, the adapted parameters (all of them, adapted or not).
    - `displacement`: θ̂ - φ, exact even where it is below the rounding of φ (in 32 bits where parameters have 16).
    - `losses`: `[num_steps]`, the loss of each step's batch before that step.
    - `gradient_norms`: `[num_steps]`, the norm of the gradient of loss plus energy, likewise.
    - `failed_step`: the first step that met a non-finite loss or gradient, after which nothing moved; -1 if none did.
    - `progress`: what to go on from; `None` unless this adaptation went on from somewhere itself.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=1.0)
    >>> adapted = sx.adapt(loss_fn, prior, jnp.array([2.0]), sx.ProximalGD(1.0), num_steps=2)
    >>> adapted.losses, adapted.displacement, int(adapted.failed_step)
    (Array([2. , 0.5], dtype=float32), Array([1.], dtype=float32), -1)
    """

    params: Params
    displacement: Params
    losses: Float[Array, " steps"]
    gradient_norms: Float[Array, " steps"]
    failed_step: Int[Array, ""]
    progress: Progress | None = None

    @property
    def first(self) -> StepInfo:
        """What the very first step saw, however long ago."""
        seen = StepInfo(self.losses[..., 0], self.gradient_norms[..., 0])
        if self.progress is None:
            return seen
        return jax.tree.map(lambda kept, ours: kept.astype(ours.dtype), self.progress.first, seen)

    @property
    def residual(self) -> Float[Array, "..."]:
        """How far from converged: the last gradient norm relative to the first. 1 at the start, 0 at the optimum."""
        first = self.first.gradient_norm
        return self.gradient_norms[..., -1] / jnp.where(first > 0, first, 1)


class Problem(eqx.Module):
    """One task to adapt to: all of `adapt`'s arguments, so that an adjoint can run it and differentiate it."""

    loss_fn: LossFn
    prior: Prior
    data: Data
    solver: AbstractSolver
    key: PRNGKeyArray | None
    num_steps: int = eqx.field(static=True)
    sample: SampleFn | None = None
    trainable: tuple[str, ...] | None = eqx.field(default=None, static=True)
    fixed_log_variance: float | None = eqx.field(default=None, static=True)
    """Where all variances are one number that never moves: known to the compiler, it costs nothing in the loop."""
    progress: Progress | None = None
    """Go on from here, not from the mean."""

    def batch(self, step: Any) -> Data:
        """The data of a step; `num_steps` and beyond are fresh batches that adaptation has not used."""
        if self.sample is None:
            return self.data
        assert self.key is not None
        return self.sample(jax.random.fold_in(self.key, step), self.data)

    def run(self, prior: Prior, *, checkpoint: bool = False, last: int | None = None, mixed: bool = False) -> Adapted:
        """Adapt from `prior`.

        With `checkpoint`, a reverse pass stores little and computes the rest again. With `last`, it goes through so
        many steps only, and takes what was before them for constant. With `mixed`, it differentiates gradients by
        mixed modes.
        """
        last = self.num_steps if last is None else min(last, self.num_steps)
        step, start = self._step(prior, mixed=mixed), self.start(prior)
        if checkpoint and not mixed and last > 1 and not _is_small(start):
            # The state alone is stored, not what a step makes of it. In a loop nothing can be mistaken for the same.
            step = jax.checkpoint(step, prevent_cse=False)
        if last == self.num_steps:
            carry, (info, _) = _scan(step, start, last, checkpoint)
            return self._adapted(prior, carry, info)
        still, before = stop_gradient(prior), self.num_steps - last
        carry, early = _scan(self._step(still), self.start(still), before, False)
        carry, late = _scan(step, stop_gradient(carry), last, checkpoint, before)
        return self._adapted(prior, carry, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), early[0], late[0]))

    def watch(self, prior: Prior, observe: Any) -> tuple[Adapted, Any]:
        """`run`, and `observe(index, params)` after every step, stacked; the index of the first step is 0."""
        carry, (info, seen) = _scan(self._step(prior, observe), self.start(prior), self.num_steps, False)
        return self._adapted(prior, carry, info), seen

    def start(self, prior: Prior) -> Any:
        """Before the first step, for `advance`."""
        part, _ = self._restricted(prior)
        if self.progress is None:
            displacement, state, _ = no_progress(part, self.solver)
        else:
            displacement, state = self.progress.displacement, self.solver.resume(self.progress.solver, part)
        return displacement, state, jnp.full((), -1, jnp.int32)

    def advance(self, prior: Prior, adapting: Any, first: Int[Array, ""], last: Int[Array, ""]) -> Any:
        """From after `first` to after `last` steps, without a reverse pass; neither is known to the compiler."""
        step = self._step(prior)
        return jax.lax.fori_loop(first, last, lambda index, adapting: step(adapting, index)[0], adapting)

    def reached(self, prior: Prior, adapting: Any) -> Params:
        """The adapted parameters so far."""
        part, restriction = self._restricted(prior)
        return _complete(part.at(self._solution(adapting)), restriction, prior)

    def _restricted(self, prior: Prior) -> tuple[Prior, Restriction | None]:
        part, restriction = (prior, None) if self.trainable is None else prior.restrict(self.trainable)
        if self.fixed_log_variance is not None:
            with jax.ensure_compile_time_eval():  # So that it is a number, not a part of the program.
                log_variance = jnp.full(len(part.modules), self.fixed_log_variance, part.log_variance.dtype)
            part = Prior(mean=part.mean, log_variance=log_variance, modules=part.modules, rates=part.rates)
        return part, restriction

    def _step(self, prior: Prior, observe: Any = _nothing, *, mixed: bool = False) -> Any:
        part, restriction = self._restricted(prior)

        def step(carry, index):
            displacement, state, failed_step = carry
            # By mixed modes the way back draws it again, and it need not be kept.
            batch = None if mixed else self.batch(index)

            def objective(delta: Params) -> Array:
                params = _complete(part.at(delta), restriction, prior)
                return self.loss_fn(params, self.batch(index) if mixed else batch)

            loss_fn = MixedMode(objective) if mixed else objective
            moved, new_state, info = self.solver.step(loss_fn, displacement, state, part)
            failed_step = jnp.where((failed_step < 0) & ~info.is_finite, index, failed_step)
            # Once nothing moves, the solver's state is of no account; one that answers by it sees the failure too.
            carry = tree_where(failed_step < 0, moved, displacement), new_state, failed_step
            seen = observe(index, _complete(part.at(self._solution(carry)), restriction, prior))
            return carry, (info, seen)

        return step

    def _first(self, info: StepInfo) -> StepInfo:
        assert self.progress is not None
        return jax.tree.map(
            lambda known, seen: jnp.where(jnp.isnan(known), seen[0].astype(known.dtype), known),
            self.progress.first,
            info,
        )

    def _solution(self, carry: Any) -> Params:
        displacement, state, _ = carry
        return self.solver.solution(displacement, state)

    def _adapted(self, prior: Prior, carry: Any, info: Any) -> Adapted:
        displacement, (_, restriction) = self._solution(carry), self._restricted(prior)
        if restriction is not None:
            displacement = restriction.merge(displacement, prior.zeros())
        return Adapted(
            params=prior.at(displacement),
            displacement=displacement,
            losses=info.loss,
            gradient_norms=info.gradient_norm,
            failed_step=carry[2],
            progress=None if self.progress is None else Progress(*carry[:2], first=self._first(info)),
        )


def make_problem(
    loss_fn: LossFn,
    prior: Prior,
    data: Data,
    solver: AbstractSolver,
    *,
    num_steps: int,
    key: PRNGKeyArray | None,
    sample: SampleFn | None,
    trainable: tuple[str, ...] | None,
    fixed_log_variance: float | None = None,
    progress: Progress | None = None,
    what: str = "data",
) -> Problem:
    """Check the arguments of `adapt` and bundle them."""
    check_prior(prior)
    check_at_least("num_steps", num_steps, 1)
    check_data(data, what)
    if not isinstance(solver, AbstractSolver):
        raise TypeError(f"`solver` must be an inner solver such as `ProximalGD(0.1)`, got {type(solver).__name__}.")
    check_sample("sample", sample)
    if sample is not None and key is None:
        raise ValueError("`sample` draws random batches and needs a `key`.")
    if trainable is not None and not prior.modules.indices(trainable):
        raise ValueError(f"`trainable` names no module; known: {list(prior.modules.names)}.")
    if progress is not None:
        _check_progress(progress, prior, solver, trainable)
    problem = Problem(loss_fn, prior, data, solver, key, num_steps, sample, trainable, fixed_log_variance, progress)
    check_loss(loss_fn, prior.mean, jax.eval_shape(problem.batch, 0))
    return problem


def no_progress(prior: Prior, solver: AbstractSolver) -> Progress:
    """Before the first step, of modules that all adapt."""
    unknown = jnp.full((), jnp.nan, prior.log_variance.dtype)
    # In 16 bits steps are soon too small against the way they have come, and so is the pull back to the mean.
    return Progress(prior.zeros(), solver.init(prior), StepInfo(unknown, unknown))


def _check_progress(
    progress: Progress, prior: Prior, solver: AbstractSolver, trainable: tuple[str, ...] | None
) -> None:
    part = prior if trainable is None else prior.restrict(trainable)[0]
    ours = jax.eval_shape(lambda part: no_progress(part, solver), part)

    begin = "begin with `learner.progress(prior, num_tasks)`"
    if jax.tree.structure(progress) != jax.tree.structure(ours):
        raise ValueError(f"`task.progress` is of another network, solver or set of `trainable` modules: {begin}.")
    for (path, leaf), expected in zip(
        jax.tree_util.tree_leaves_with_path(progress), jax.tree.leaves(ours), strict=True
    ):
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if (shape, dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"`task.progress{jax.tree_util.keystr(path)}` of a task is {dtype}{list(shape)} where this learner has "
                f"{expected.dtype}{list(expected.shape)}: {begin}."
            )


def _complete(part: Params, restriction: Restriction | None, prior: Prior) -> Params:
    return part if restriction is None else restriction.merge(part, prior.mean)


def _scan(step: Any, start: Any, length: int, checkpoint: bool, first: int = 0) -> tuple[Any, Any]:
    """`length` steps, the first of which has the index `first`."""
    indices = first + jnp.arange(length, dtype=jnp.int32)
    segment = _square_root_segment(length) if checkpoint else None
    if segment is None:
        return jax.lax.scan(step, start, indices, unroll=length <= FEW and _is_small(start))
    count, rest = divmod(length, segment)

    def advance(carry, indices):
        return jax.lax.scan(step, carry, indices)

    blocks = indices[: count * segment].reshape(count, segment)
    # Segments are checkpointed one by one, and within a segment the reverse pass of the scan stores every state.
    carry, infos = jax.lax.scan(jax.checkpoint(advance), start, blocks)
    infos = jax.tree.map(lambda x: x.reshape((count * segment, *x.shape[2:])), infos)
    if rest:
        carry, tail = jax.checkpoint(advance)(carry, indices[count * segment :])
        infos = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), infos, tail)
    return carry, infos


def _is_small(carry: Any) -> bool:
    """Of a network that a few steps of are faster in a row than in a loop, by a tenth on a CPU, and soon compiled."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(carry)) <= SMALL


def _square_root_segment(num_steps: int) -> int | None:
    """About √num_steps, preferably a divisor, since a remainder is compiled a second time; `None` if not worth it."""
    if num_steps <= FEW:
        return None
    root = math.isqrt(num_steps)
    near = range(max(2, root // 2), 2 * root + 1)
    divisors = [segment for segment in near if num_steps % segment == 0]
    return min(divisors, key=lambda segment: abs(segment - root), default=root)
