"""Means and 95 % intervals."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

# 97.5 % points of Student's t distribution for 1 to 30 degrees of freedom; beyond, the normal distribution's.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def half_width(values: npt.ArrayLike) -> float | None:
    """Half the width of the 95 % confidence interval of the mean; `None` for a single value."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return None
    quantile = _STUDENT[len(array) - 2] if len(array) - 1 <= len(_STUDENT) else 1.96
    return float(quantile * array.std(ddof=1) / math.sqrt(len(array)))


def summarise(scores: Any) -> dict[str, Any]:
    """Mean and interval of scores `[seeds, tasks]`: over seeds where there are several, otherwise over tasks."""
    scores = np.asarray(scores, dtype=np.float64)
    by_seed = scores.mean(axis=1)
    over = "seeds" if len(by_seed) > 1 else "tasks"
    width = half_width(by_seed if over == "seeds" else scores[0])
    return {"mean": finite(by_seed.mean()), "ci95": finite(width), "over": over, "values": [finite(v) for v in by_seed]}


def finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)
