"""Inner solvers: one proximal step on a task's loss.

A solver moves the *displacement* δ = θ - φ, not θ. Where a module has a small variance its displacement is far below
the rounding of φ, yet the meta-gradient of the variance is a product with it; kept by itself it has full precision:
that of the variances, 32 bits at least.
"""

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._check import as_number, check_at_least, check_number, is_concrete
from ._mixed import value_and_gradient
from ._prior import Prior
from ._tree import tree_dot, tree_norm, tree_where
from ._types import Params, Scalar

State = TypeVar("State")

ObjectiveFn = Callable[[Params], Scalar]
"""A task's loss as a function of the displacement."""


class StepInfo(NamedTuple):
    """What one step saw *before* it moved.

    `loss` of its batch; `gradient_norm`, |∇ℓ + δ/σ²| over the modules that are free to move: 0 at the MAP estimate.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create(jnp.zeros(2), variance=0.5)
    >>> sx.StepInfo.of(prior, jnp.ones(2), jnp.asarray(1.0), jnp.full(2, -2.0)).gradient_norm
    Array(0., dtype=float32)
    """

    loss: Scalar
    gradient_norm: Scalar

    @property
    def is_finite(self) -> Bool[Array, "..."]:
        return jnp.isfinite(self.loss) & jnp.isfinite(self.gradient_norm)

    @staticmethod
    def of(prior: Prior, displacement: Params, loss: Scalar, gradient: Params) -> "StepInfo":
        """From the loss and its gradient at `displacement`."""
        free = prior.modules.expand((~prior.frozen).astype(prior.log_variance.dtype))
        precision = prior.modules.expand(prior.precision())

        def add_pull(f, p, d, g):
            pull = 0 if prior.is_flat else p * d.astype(f.dtype)
            return jnp.where(f > 0, g.astype(f.dtype) + pull, 0)

        total = jax.tree.map(add_pull, free, precision, displacement, gradient)
        return StepInfo(loss=loss, gradient_norm=tree_norm(jax.lax.stop_gradient(total)))


class AbstractSolver(eqx.Module, Generic[State]):
    """What `adapt` needs of an inner solver: `init` and `step`, both pure; the others are there to be overridden.

    To add one, write a final subclass with these two methods; see the docs, "Add an inner solver".

    >>> import jax, jax.numpy as jnp, shrinx as sx
    >>> class SignDescent(sx.AbstractSolver):
    ...     rate: float
    ...     def init(self, prior):
    ...         return None
    ...     def step(self, loss_fn, displacement, state, prior):
    ...         loss, gradient = sx.value_and_gradient(loss_fn, displacement)
    ...         moved = jax.tree.map(lambda d, g: d - self.rate * jnp.sign(g), displacement, gradient)
    ...         return moved, state, sx.StepInfo.of(prior, displacement, loss, gradient)
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=jnp.inf)
    >>> sx.adapt(lambda p, x: jnp.sum((p - x) ** 2), prior, jnp.ones(1), SignDescent(0.25), num_steps=4).params
    Array([1.], dtype=float32)
    """

    @abc.abstractmethod
    def init(self, prior: Prior) -> State:
        """The state before the first step of a task that starts at the prior's mean."""

    @abc.abstractmethod
    def step(
        self, loss_fn: ObjectiveFn, displacement: Params, state: State, prior: Prior
    ) -> tuple[Params, State, StepInfo]:
        """One step on `loss_fn` plus the prior's energy, from `displacement`."""

    def resume(self, state: State, prior: Prior) -> State:
        """The state to go on with after the prior has moved (see `Progress`): the same, unless it is overridden."""
        del prior
        return state

    def squared_gradients(self, state: State) -> Params | None:
        """An average of the squared gradients of the loss, if it keeps one: `None`, unless it is overridden."""
        del state
        return None

    def solution(self, displacement: Params, state: State) -> Params:
        """The answer after a step that led to `displacement` and `state`: the displacement, unless it is overridden."""
        del state
        return displacement


class _GDState(NamedTuple):
    num_steps: Int[Array, ""]
    direction: Params | None


class ProximalGD(AbstractSolver[_GDState]):
    r"""Proximal gradient descent (the paper's algorithm 2): a gradient step, then the prior's proximal step.

    $$\theta' = \mathrm{prox}_\alpha(\theta - \alpha \nabla \ell(\theta))
              = \phi + \frac{\theta - \alpha \nabla \ell(\theta) - \phi}{1 + \alpha / \sigma^2}$$

    The proximal step is implicit, hence stable however small σ² becomes. With infinite variances this is plain
    gradient descent.

    **Arguments:**

    - `learning_rate`: α, a number or an optax schedule.
    - `power_steps`: with k > 0, k power iterations before every step (warm-started by the step before) estimate the
      largest curvature L of the loss, and the step size becomes min(α, 1/L). It guards long adaptations against
      regions that are too sharp for α, at the price of k Hessian-vector products a step.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=1.0)
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> sx.adapt(loss_fn, prior, jnp.array([2.0]), sx.ProximalGD(0.5), num_steps=50).params
    Array([1.], dtype=float32)
    """

    learning_rate: float | Array | Callable[[Any], Any]
    power_steps: int = eqx.field(default=0, static=True)

    def __check_init__(self):
        check_learning_rate(self.learning_rate)
        check_at_least("power_steps", self.power_steps, 0)

    def init(self, prior: Prior) -> _GDState:
        direction = _random_direction(prior) if self.power_steps else None
        return _GDState(num_steps=jnp.zeros((), jnp.int32), direction=direction)

    def step(
        self, loss_fn: ObjectiveFn, displacement: Params, state: _GDState, prior: Prior
    ) -> tuple[Params, _GDState, StepInfo]:
        loss, gradient = value_and_gradient(loss_fn, displacement)
        steps = prior.steps(_rate_at(self.learning_rate, state.num_steps))
        direction = state.direction
        if direction is not None:
            curvature, direction = _largest_curvature(loss_fn, displacement, direction, self.power_steps, prior)
            steps = _limit(steps, curvature)
        moved = jax.tree.map(lambda d, g, a: d - a.astype(d.dtype) * g, displacement, gradient, steps)
        info = StepInfo.of(prior, displacement, loss, gradient)
        return prior.shrink(moved, steps), _GDState(num_steps=state.num_steps + 1, direction=direction), info


class _AdamState(NamedTuple):
    num_steps: Int[Array, ""]
    first: Params
    second: Params


class ProximalAdam(AbstractSolver[_AdamState]):
    r"""Proximal Adam (the paper's algorithm 3): an Adam step on the loss, then a proximal step in Adam's own metric.

    $$\theta_{1/2} = \theta - \alpha \hat m / D, \qquad
      \theta' = \phi + \frac{\theta_{1/2} - \phi}{1 + \alpha / (\sigma^2 D)}, \qquad
      D = \sqrt{\hat v + \epsilon_\text{root}} + \epsilon$$

    Both halves share the denominator D, so that a fixed point of the iteration is a stationary point of the
    posterior. With infinite variances this is `optax.adam`. The paper's form, $D = \sqrt{\hat v + \epsilon}$, is
    `eps=0, eps_root=ε`.

    **Arguments:** `learning_rate`, a number or an optax schedule; `b1`, `b2`, `eps`, `eps_root` as in `optax.adam`.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create(jnp.zeros(1), variance=1.0)
    >>> loss_fn = lambda theta, x: 0.5 * jnp.sum((theta - x) ** 2)
    >>> sx.adapt(loss_fn, prior, jnp.array([2.0]), sx.ProximalAdam(0.1), num_steps=500).params.round(3)
    Array([1.], dtype=float32)
    """

    learning_rate: float | Array | Callable[[Any], Any]
    b1: float = eqx.field(default=0.9, converter=as_number)
    b2: float = eqx.field(default=0.999, converter=as_number)
    eps: float = eqx.field(default=1e-8, converter=as_number)
    eps_root: float = eqx.field(default=0.0, converter=as_number)

    def __check_init__(self):
        check_learning_rate(self.learning_rate)
        for name in ("b1", "b2"):
            if is_concrete(getattr(self, name)) and not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 0 and below 1, got {getattr(self, name)}.")
        check_number("eps", self.eps)
        check_number("eps_root", self.eps_root)

    def init(self, prior: Prior) -> _AdamState:
        # In 16 bits a decay of 0.999 is none, and ε is 0.
        zeros = prior.zeros()
        return _AdamState(num_steps=jnp.zeros((), jnp.int32), first=zeros, second=zeros)

    def step(
        self, loss_fn: ObjectiveFn, displacement: Params, state: _AdamState, prior: Prior
    ) -> tuple[Params, _AdamState, StepInfo]:
        loss, gradient = value_and_gradient(loss_fn, displacement)
        count = state.num_steps + 1
        wide = jax.tree.map(lambda g, m: g.astype(m.dtype), gradient, state.first)
        first = jax.tree.map(lambda m, g: self.b1 * m + (1 - self.b1) * g, state.first, wide)
        second = jax.tree.map(lambda v, g: self.b2 * v + (1 - self.b2) * g * g, state.second, wide)
        power = count.astype(prior.log_variance.dtype)
        # Divided once, not parameter by parameter.
        first_scale, second_scale = 1 / (1 - self.b1**power), 1 / (1 - self.b2**power)

        def denominator(v):
            # The square root has no derivative at 0, where the units of a ReLU network that are off have their v.
            square = v * second_scale.astype(v.dtype) + self.eps_root
            positive = square > 0
            return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0) + self.eps

        scale = jax.tree.map(denominator, second)
        steps = jax.tree.map(
            lambda a, d: a / d.astype(a.dtype), prior.steps(_rate_at(self.learning_rate, state.num_steps)), scale
        )
        moved = jax.tree.map(
            lambda d, m, a: d - (a.astype(m.dtype) * (m * first_scale.astype(m.dtype))).astype(d.dtype),
            displacement,
            first,
            steps,
        )
        info = StepInfo.of(prior, displacement, loss, gradient)
        return prior.shrink(moved, steps), _AdamState(num_steps=count, first=first, second=second), info

    def squared_gradients(self, state: _AdamState) -> Params:
        # Before the first step there are none.
        count = jnp.maximum(state.num_steps, 1)
        return jax.tree.map(lambda v: v / (1 - self.b2 ** count.astype(v.dtype)), state.second)


def _rate_at(learning_rate: Any, count: Int[Array, ""]) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def check_learning_rate(learning_rate: Any) -> None:
    """A positive number or a schedule."""
    if not callable(learning_rate):
        check_number("learning_rate", learning_rate, positive=True)


def _largest_curvature(
    loss_fn: ObjectiveFn, displacement: Params, direction: Params, power_steps: int, prior: Prior
) -> tuple[Float[Array, ""], Params]:
    # The step size is a safeguard, not part of the model: nothing is differentiated through it.
    displacement, direction = jax.lax.stop_gradient((displacement, direction))
    _, product = jax.linearize(jax.grad(loss_fn), displacement)
    curvature = jnp.zeros(())
    for _ in range(power_steps):
        image = _of_free(prior, product(direction))
        norm = tree_norm(image)
        curvature = jnp.abs(tree_dot(direction, image))
        # Where the loss has no second derivative there is nothing to be safe from that this could tell.
        curvature = jnp.where(jnp.isfinite(curvature), curvature, 0)
        # Where the loss is flat along the direction there is no better one to go on with.
        found = jnp.isfinite(norm) & (norm > 0)
        image = jax.tree.map(lambda v, n=norm: v / n.astype(v.dtype), image)
        direction = tree_where(found, image, direction)
    return jax.lax.stop_gradient((curvature, direction))


def _of_free(prior: Prior, tree: Params) -> Params:
    """Zero in frozen modules, whose curvature is nobody's concern."""
    frozen = prior.modules.expand(prior.frozen.astype(prior.log_variance.dtype))
    return jax.tree.map(lambda f, leaf: jnp.where(f > 0, 0, leaf), frozen, tree)


def _random_direction(prior: Prior) -> Params:
    """A unit vector of what can move, in general position (one of ones would be in the null space of a softmax)."""
    leaves, treedef = jax.tree.flatten(prior.zeros())
    keys = jax.random.split(jax.random.key(0), len(leaves))
    draws = [jax.random.normal(key, leaf.shape).astype(leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    direction = _of_free(prior, treedef.unflatten(draws))
    norm = tree_norm(direction)
    norm = jnp.where(norm > 0, norm, 1)
    return jax.tree.map(lambda draw: draw / norm.astype(draw.dtype), direction)


def _limit(steps: Params, curvature: Scalar) -> Params:
    largest = jnp.max(jnp.stack([jnp.max(step) for step in jax.tree.leaves(steps)]))
    sharpness = (largest * curvature.astype(largest.dtype)).astype(largest.dtype)
    return jax.tree.map(lambda step: step / jnp.maximum(sharpness, 1), steps)
