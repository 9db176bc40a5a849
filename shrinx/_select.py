"""Which modules are task-specific: ranking and choosing by what the prior has learned."""

import abc
from collections.abc import Iterable, Iterator
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._check import check_at_least, check_number, check_prior, is_concrete
from ._modules import as_names
from ._prior import Prior


class Selection(eqx.Module):
    """Chosen modules.

    **Attributes:** `names` of the chosen modules, highest score first; `scores` of all modules, `[modules]`; `mask`,
    `[modules]`, true for the chosen; `fraction`, the chosen share of all parameters.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"a": jnp.ones(1), "b": jnp.ones(3)}, variance={"a": 1e-5, "b": 2.0})
    >>> chosen = sx.select(prior, sx.TopK(1))
    >>> chosen.names, chosen.mask.tolist(), chosen.fraction
    (('b',), [False, True], 0.75)
    """

    names: tuple[str, ...] = eqx.field(static=True)
    scores: np.ndarray
    mask: np.ndarray
    fraction: float = eqx.field(static=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


def module_names(chosen: "str | Iterable[str] | Selection | None") -> tuple[str, ...] | None:
    """Names of modules in the form everything inside uses, from any form a caller may use."""
    return None if chosen is None else as_names(chosen)


class AbstractRule(eqx.Module):
    """How many of the best modules to choose, given everyone's score.

    >>> import shrinx as sx
    >>> class Everything(sx.AbstractRule):
    ...     def choose(self, scores):
    ...         return scores > float("-inf")
    """

    @abc.abstractmethod
    def choose(self, scores: np.ndarray) -> np.ndarray:
        """A mask over the modules, given their scores (logarithms; -inf is never chosen)."""


class Threshold(AbstractRule):
    """Every module whose score is at least `log(least)`.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"a": jnp.ones(1), "b": jnp.ones(3)}, variance={"a": 1e-5, "b": 2.0})
    >>> sx.select(prior, sx.Threshold(0.1)).names
    ('b',)
    """

    least: float

    def __check_init__(self):
        check_number("least", self.least, positive=True)

    def choose(self, scores: np.ndarray) -> np.ndarray:
        # Logarithms of variances have 32 bits mostly: one of exactly `least` may fall short of it by their rounding.
        least = np.log(self.least)
        rounding = 4 * float(np.finfo(np.float32).eps) * max(1.0, abs(least)) if np.isfinite(least) else 0.0
        return scores >= least - rounding


class TopK(AbstractRule):
    """The `k` modules with the highest scores.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"a": jnp.ones(1), "b": jnp.ones(3)}, variance={"a": 1e-5, "b": 2.0})
    >>> chosen = sx.select(prior, sx.TopK(1))
    >>> chosen.names, chosen.fraction
    (('b',), 0.75)
    """

    k: int

    def __check_init__(self):
        check_at_least("k", self.k, 1)

    def choose(self, scores: np.ndarray) -> np.ndarray:
        if self.k > len(scores):
            raise ValueError(f"TopK cannot choose {self.k} of {len(scores)} modules.")
        mask = np.zeros(len(scores), dtype=bool)
        mask[np.argsort(-scores, kind="stable")[: self.k]] = True
        return mask


class LargestGap(AbstractRule):
    """The modules above the widest gap between neighbouring scores: where the ranking falls apart by itself.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> params = {name: jnp.ones(1) for name in "abcd"}
    >>> prior = sx.Prior.create(params, variance={"a": 1e-5, "b": 2.0, "c": 3e-5, "d": 0.5})
    >>> sx.select(prior, sx.LargestGap()).names
    ('b', 'd')
    """

    def choose(self, scores: np.ndarray) -> np.ndarray:
        # Frozen modules cannot be chosen, and so do not say where the ranking falls apart.
        ranked = np.sort(scores[scores > -np.inf])[::-1]
        if len(ranked) < 2:
            return scores > -np.inf
        # A finite stand-in for infinity keeps the gap between it and the rest the widest.
        gaps = -np.diff(np.nan_to_num(ranked, posinf=1e6))
        return scores >= ranked[int(np.argmax(gaps))]


class Share(AbstractRule):
    """The fewest modules that hold a `share` of the total: of all variances, or of whatever else is the score.

    A gap between small variances and smaller ones means nothing to it, so it is the rule for variances that spread
    over many orders of magnitude. With `score="distance"` it is a share of the squared distance tasks go.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> params = {name: jnp.ones(1) for name in "abc"}
    >>> prior = sx.Prior.create(params, variance={"a": 1e-9, "b": 2.0, "c": 1e-3})
    >>> sx.select(prior, sx.LargestGap()).names, sx.select(prior, sx.Share(0.99)).names
    (('b', 'c'), ('b',))
    """

    share: float = 0.99

    def __check_init__(self):
        check_number("share", self.share)
        if not 0 < self.share < 1:
            raise ValueError(f"Share needs a `share` above 0 and below 1, got {self.share}.")

    def choose(self, scores: np.ndarray) -> np.ndarray:
        largest = scores.max()
        if not np.isfinite(largest):  # Infinite variances hold all of any total; where all are 0 none does.
            return scores == np.inf
        ranked = np.sort(scores)[::-1]
        held = np.cumsum(np.exp(ranked.astype(np.float64) - largest))
        # All of those that tie with the last.
        return scores >= ranked[int(np.searchsorted(held, self.share * held[-1]))]


Score = Literal["variance", "distance", "relative"]


def select(prior: Prior, rule: AbstractRule, *, score: Score = "variance") -> Selection:
    r"""Choose the task-specific modules.

    **Arguments:**

    - `prior`: learned, with finite values in hand (not inside `jit`).
    - `rule`: [`TopK`][shrinx.TopK], [`Threshold`][shrinx.Threshold], [`LargestGap`][shrinx.LargestGap] or
      [`Share`][shrinx.Share].
    - `score`: what to rank by, on a logarithmic scale. `"variance"` is σ², the paper's choice: how far *one parameter*
      moves. `"distance"` is D σ², the expected squared distance the *whole module* moves, which corrects for modules
      of very different size. `"relative"` is D σ² / |φ|², that distance against the module's own length.

    **Returns:** a `Selection`. Frozen modules (variance 0) are never chosen.

    >>> import jax.numpy as jnp, shrinx as sx
    >>> prior = sx.Prior.create({"bias": jnp.ones(2), "weight": jnp.ones(100)}, variance={"bias": 0.3, "weight": 0.2})
    >>> sx.select(prior, sx.TopK(1)).names, sx.select(prior, sx.TopK(1), score="distance").names
    (('bias',), ('weight',))
    """
    check_prior(prior)
    if not isinstance(rule, AbstractRule):
        raise TypeError(f"`rule` must be `TopK(k)`, `Threshold(least)`, `LargestGap()` or `Share()`, got {rule!r}.")
    if not is_concrete(prior.log_variance):
        raise TypeError("`select` looks at the variances, which are not known inside `jit`: call it outside.")
    scores = _scores(prior, score)
    if np.isnan(scores).any():
        names = [name for name, value in zip(prior.modules.names, scores, strict=True) if np.isnan(value)]
        raise ValueError(f"Modules {names} have no usable score: the variance or the mean is NaN.")
    mask = rule.choose(scores) & (scores > -np.inf)
    order = [index for index in np.argsort(-scores, kind="stable") if mask[index]]
    sizes = np.asarray(prior.modules.sizes)
    return Selection(
        names=tuple(prior.modules.names[index] for index in order),
        scores=scores,
        mask=mask,
        fraction=float(sizes[mask].sum() / sizes.sum()),
    )


def _scores(prior: Prior, score: str) -> np.ndarray:
    scores = np.asarray(prior.log_variance, dtype=np.float64)
    if score == "variance":
        return scores
    scores = scores + np.log(prior.modules.sizes)
    if score == "distance":
        return scores
    if score == "relative":
        squares = jax.tree.map(lambda leaf: jnp.square(leaf.astype(prior.log_variance.dtype)), prior.mean)
        length = np.asarray(prior.modules.sum(squares), dtype=np.float64)
        return scores - np.log(np.maximum(length, np.finfo(np.float64).tiny))
    raise ValueError(f"Unknown score {score!r}; known: 'variance', 'distance', 'relative'.")
