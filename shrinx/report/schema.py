"""The shape of a run's files: checked once on loading, so that everything after can rely on it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """A JSON object with these keys; other keys are let through."""

    required: dict[str, Any] = field(default_factory=dict)
    optional: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    """A JSON object whose keys are names and whose values all have one shape."""

    of: Any


NUMBER = (int, float, type(None))
TEXT = (str, type(None))
SCORE = Record({"mean": NUMBER}, {"ci95": NUMBER, "over": TEXT, "values": [NUMBER]})
MODULE = Record({"name": str}, {"size": NUMBER, "variance": NUMBER, "variances": [NUMBER], "selected": bool})
TEST = Record(
    {},
    {
        "all": SCORE,
        "selected": SCORE,
        "before": SCORE,
        "only": Named(SCORE),
        "subsets": Named(SCORE),
        "also": Named(SCORE),
    },
)
CURVES = Record(
    {"steps": [(int, float)], "series": Named(Record({"mean": [NUMBER]}, {"ci95": [NUMBER]}))}, {"horizon": NUMBER}
)
CONDITION = Record(
    {"num_alphabets": int, "num_instances": int, "test": Named(SCORE)},
    {"selected": [str], "variances": Named(NUMBER), "curves": CURVES},
)
EXAMPLE = Record(
    {"x": [NUMBER]}, {"truth": [NUMBER], "support_x": [NUMBER], "support_y": [NUMBER], "predictions": Named([NUMBER])}
)
EXTRA_SERIES = Record({"x": [NUMBER], "y": [NUMBER]}, {"label": TEXT, "low": [NUMBER], "high": [NUMBER], "style": TEXT})
EXTRA = Record(
    {"name": str, "series": [EXTRA_SERIES]},
    {
        "title": TEXT,
        "caption": TEXT,
        "x_label": TEXT,
        "y_label": TEXT,
        "x_log": bool,
        "y_log": bool,
        "equal": bool,
        "overlay": bool,
        "marks": [Record({}, {"x": NUMBER, "y": NUMBER, "label": TEXT})],
    },
)
RESULT = Record(
    {"experiment": str},
    {
        "seconds": NUMBER,
        "fraction": NUMBER,
        "metric": Record({}, {"name": TEXT, "lower_is_better": bool}),
        "modules": [MODULE],
        "test": TEST,
        "curves": CURVES,
        "examples": [EXAMPLE],
        "figures": [EXTRA],
        "reference": Record({"num_alphabets": int, "num_instances": int}),
        "conditions": [CONDITION],
        "speech": Record({"stops": Named(int)}, {"scores": Named([NUMBER])}),
    },
)
CONFIG = Record(
    {"format": int, "experiment": str}, {"algorithm": TEXT, "preset": TEXT, "seeds": int, "config": Record()}
)
ROW = Record(
    {"step": int}, {"seconds": NUMBER, "query_loss": [NUMBER], "num_failed": [NUMBER], "log_variance": [[NUMBER]]}
)


def mismatch(value: Any, shape: Any, where: str = "") -> str | None:
    """The first place where `value` has not this shape, in words, or `None`. An optional key may also be null."""
    match shape:
        case Record():
            if not isinstance(value, dict):
                return f"{where or 'it'} is no object"
            missing = [key for key in shape.required if key not in value]
            if missing:
                return f"{_join(where, missing[0])} is missing"
            present = shape.required | {key: of for key, of in shape.optional.items() if value.get(key) is not None}
            return _first(mismatch(value[key], of, _join(where, key)) for key, of in present.items())
        case Named():
            if not isinstance(value, dict):
                return f"{where} is no object"
            return _first(mismatch(item, shape.of, _join(where, key)) for key, item in value.items())
        case [item]:
            if not isinstance(value, list):
                return f"{where} is no list"
            return _first(mismatch(each, item, f"{where}[{index}]") for index, each in enumerate(value))
        case _:
            # To Python a boolean is an integer; here it is not.
            right = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
            return None if right else f"{where} is {value!r}"


def uneven(result: dict[str, Any]) -> str | None:
    """The first list of `result` that is not as long as the one it is drawn against, in words."""
    curves = result.get("curves") or {"steps": [], "series": {}}
    pairs = [
        (f"curves.{label}.{key}", series.get(key), curves["steps"])
        for label, series in curves["series"].items()
        for key in ("mean", "ci95")
    ]
    for index, example in enumerate(result.get("examples") or ()):
        lines = {"truth": example.get("truth"), **(example.get("predictions") or {})}
        pairs += [(f"examples[{index}].{label}", line, example["x"]) for label, line in lines.items()]
        pairs.append((f"examples[{index}].support_y", example.get("support_y"), example.get("support_x") or []))
    for extra in result.get("figures") or ():
        for series in extra["series"]:
            pairs += [(f"figures.{extra['name']}.{key}", series.get(key), series["x"]) for key in ("y", "low", "high")]
    return _first(
        None
        if values is None or len(values) == len(against)
        else f"{where} has {len(values)} values, not {len(against)}"
        for where, values, against in pairs
    )


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _first(found: Any) -> str | None:
    return next((problem for problem in found if problem is not None), None)
