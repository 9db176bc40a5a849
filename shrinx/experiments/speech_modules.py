"""Which layers of WaveNet learn the voice: sets of modules to compare, and variances by block and kind."""

from typing import Any

import numpy as np

from .._prior import Prior
from .._select import Selection, TopK, select
from ..data.speech import RATE
from ..models.wavenet import WaveNet
from ..runs.errors import UserError
from ..runs.statistics import finite

KINDS = ("dilated", "condition", "residual", "skip")


def selected_modules(prior: Prior, count: int) -> Selection | None:
    """Those of largest variance; `None` where no variances have been learned."""
    return select(prior, TopK(count)) if np.isfinite(np.asarray(prior.log_variance)).all() else None


def by_depth(network: WaveNet, prior: Prior) -> tuple[str, ...]:
    """All modules from the input to the output."""
    ends = ("input", "input_skip"), ("output0", "output1")
    blocks = [f"{block}/{kind}" for block in network.block_names for kind in (*KINDS, "speaker")]
    order = [*ends[0], "speaker", *blocks, *ends[1]]
    return tuple(name for name in order if name in prior.modules.names)


def subset(label: str, network: WaveNet, prior: Prior, *, count: int, seed: int) -> tuple[str, ...] | None:
    """The modules that adapt; `None` is all of them."""
    match label:
        case "all":
            return None
        case "selected":
            chosen = selected_modules(prior, count)
            if chosen is None:
                raise UserError("`--adapted selected` needs learned variances: run sigma-reptile or sigma-imaml.")
            return chosen.names
        case "random":
            return tuple(np.random.RandomState(seed).permutation(prior.modules.names)[:count].tolist())
        case "last":
            return by_depth(network, prior)[-count:]
    raise ValueError(f"Unknown set of modules {label!r}.")


def receptive_milliseconds(network: WaveNet) -> list[float]:
    """How far back each block hears."""
    return [1e3 * (1 + int(reach)) / RATE for reach in np.cumsum(network.dilations)]


def variance_figure(network: WaveNet, prior: Prior) -> dict[str, Any]:
    """The paper's figure: the variance of every layer, by block and kind, as an extra figure of a report."""
    variances = dict(zip(prior.modules.names, np.exp(np.asarray(prior.log_variance, np.float64)), strict=True))
    series = []
    for kind in KINDS:
        here = [
            (block, variances[f"{name}/{kind}"])
            for block, name in enumerate(network.block_names)
            if f"{name}/{kind}" in variances
        ]
        blocks, values = zip(*here, strict=True) if here else ((), ())
        series.append({"label": kind, "x": list(blocks), "y": [finite(float(value)) for value in values]})
    last = len(network.block_names)
    ends = {"input": -2, "input_skip": -1, "output0": last, "output1": last + 1}
    series.append(
        {
            "label": "input, output",
            "x": list(ends.values()),
            "y": [finite(float(variances[name])) for name in ends],
            "style": "points",
        }
    )
    return {
        "name": "blocks",
        "title": "Variance of each layer",
        "caption": "How far the layers of each block move from voice to voice; before the first block the two input "
        "layers, after the last the two output layers.",
        "x_label": "block",
        "y_label": "σ²",
        "y_log": True,
        "series": series,
    }
