"""Figures of the two synthetic experiments: what was learned, error of each parameter, a task in two dimensions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._evaluate import adaptation_curve
from .._prior import Prior
from .._task import Task
from ..runs.meta import Outcome
from ..runs.parallel import over_seeds
from ..runs.statistics import half_width
from ..tasks.hierarchical import Model, Theta
from .algorithms import LearnerConfig, make_solver

ANGLES = np.linspace(0, 2 * np.pi, 121)

Likelihood = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""From a task's true parameters, the mean of its observations and a distance in standard errors to that contour of the
likelihood, `[2, points]`, in the plane of the first two parameters."""


def extras(config: LearnerConfig, model: Model, likelihood: Likelihood, outcome: Outcome) -> dict[str, Any]:
    """The figures, and Meta-SGD's rates."""
    figures = [_errors(config, model, outcome), _illustration(model, likelihood, outcome)]
    if config.algorithm != "maml":
        figures.insert(0, _learned(config, model, outcome.priors))
    if outcome.priors.rates is None:
        return {"figures": figures}
    rates = np.mean(_rates(config, model, outcome.priors), axis=0).tolist()
    return {
        "figures": figures,
        "rates": [{"name": name, "rate": rate} for name, rate in zip(model.names, rates, strict=True)],
    }


def _rates(config: LearnerConfig, model: Model, priors: Prior) -> np.ndarray:
    """Meta-SGD's step sizes `[seeds, parameters]`."""
    assert priors.rates is not None
    return config.inner_rate * np.stack([np.asarray(priors.rates[name]) for name in model.names], axis=1)


def _learned(config: LearnerConfig, model: Model, priors: Prior) -> dict[str, Any]:
    """The learned variances, or Meta-SGD's rates, beside the true variances, each relative to its geometric mean."""
    learned = priors.rates is None
    values = np.exp(np.asarray(priors.log_variance)) if learned else np.maximum(_rates(config, model, priors), 1e-12)
    label = "variance" if learned else "learning rate"
    places = list(range(len(model.names)))
    relative = values / np.exp(np.log(values).mean(axis=1, keepdims=True))
    truth = np.square(model.spread) / np.exp(np.log(np.square(model.spread)).mean())
    return {
        "name": "learned",
        "title": "What was learned for each parameter",
        "caption": "The learned variance (Meta-SGD: learning rate) of each parameter, one point per seed, and the "
        "variance that the tasks were drawn with; each relative to its own geometric mean.",
        "overlay": True,
        "kind": "lines",
        "x_label": "parameter",
        "y_label": "relative to the geometric mean",
        "y_log": True,
        "series": [
            {"label": "true variance", "x": places, "y": truth.tolist(), "style": "dashed"},
            {
                "label": f"learned {label}",
                "x": places * len(relative),
                "y": [float(value) if np.isfinite(value) else None for value in relative.reshape(-1)],
                "style": "points",
            },
        ],
    }


def _errors(config: LearnerConfig, model: Model, outcome: Outcome) -> dict[str, Any]:
    """Mean absolute error of each parameter against steps of adaptation."""
    solver = make_solver(config)
    num_parameters = len(model.names)

    def error(theta: Theta, query: dict[str, Array]) -> Array:
        return jnp.sum(query["which"] * jnp.abs(model.vector(theta) - query["theta"]))

    def one_seed(one: tuple[Prior, Task]) -> Array:
        prior, tasks = one

        query: Any = tasks.query

        def one_parameter(which: Array) -> Array:
            marked = {**query, "which": jnp.repeat(which[None], len(query["theta"]), axis=0)}
            curve = adaptation_curve(
                model.loss,
                prior,
                Task(tasks.support, marked),
                solver,
                num_steps=10 * config.adapt_steps,
                metric_fn=error,
            )
            return jnp.mean(curve, axis=0)

        return jax.lax.map(one_parameter, jnp.eye(num_parameters))

    curves = np.asarray(over_seeds(one_seed)((outcome.priors, outcome.test_tasks)))
    steps = np.unique(np.geomspace(1, curves.shape[-1] - 1, 50).astype(int))
    series = []
    for index, name in enumerate(model.names):
        values = curves[:, index, steps]
        series.append({"label": name, "x": steps.tolist(), "y": values.mean(axis=0).tolist()})
        if len(values) > 1:
            width = np.asarray([half_width(column) for column in values.T])
            series[-1] |= {
                "low": (values.mean(axis=0) - width).tolist(),
                "high": (values.mean(axis=0) + width).tolist(),
            }
    return {
        "name": "errors",
        "title": "Error of each parameter",
        "caption": "Mean absolute error of each parameter against steps of adaptation, over held-out tasks.",
        "kind": "lines",
        "x_label": "steps of adaptation",
        "y_label": "mean absolute error",
        "x_log": True,
        "series": series,
    }


def _illustration(model: Model, likelihood: Likelihood, outcome: Outcome) -> dict[str, Any]:
    """Prior and likelihood of one held-out task in the plane of the first two parameters."""
    task = jax.tree.map(lambda x: np.asarray(x[0, 0]), outcome.test_tasks)
    theta, mean = task.support["theta"], task.support["x"].mean(axis=0)
    circle = np.stack([np.cos(ANGLES), np.sin(ANGLES)])
    series = [
        _closed(f"prior, {width}σ", model.centre + width * np.asarray(model.spread[:2])[:, None] * circle, "dashed")
        for width in (1, 2)
    ]
    learned = np.exp(0.5 * np.asarray(outcome.first.log_variance, dtype=np.float64))[:2]
    if np.all(np.isfinite(learned)):
        found = np.asarray([float(outcome.first.mean[name]) for name in model.names[:2]])
        series.append(_closed("learned prior, 2σ", found[:, None] + 2 * learned[:, None] * circle))
    series += [_closed(f"likelihood, {width} s.e.", likelihood(theta, mean, width)) for width in (0.5, 1.0)]
    return {
        "name": "illustration",
        "title": "One task in two dimensions",
        "caption": "Prior and likelihood of a held-out task in the plane of its first two parameters, the others at "
        "their true values; the diamond is the task's true parameter.",
        "kind": "lines",
        "x_label": "theta0",
        "y_label": "theta1",
        "equal": True,
        "marks": [{"x": float(theta[0]), "y": float(theta[1]), "label": "truth"}],
        "series": series,
    }


def _closed(label: str, points: np.ndarray, style: str | None = None) -> dict[str, Any]:
    return {"label": label, "x": points[0].tolist(), "y": points[1].tolist(), "style": style}
