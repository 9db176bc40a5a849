"""Augmented Omniglot with little data (appendix E.1): few alphabets, few drawings, and images that are not turned.

T alphabets to learn from and K drawings of each character make a condition; all conditions and seeds of an algorithm
are trained side by side in one program. The paper's claim: σ-Reptile and σ-iMAML are better than Reptile and iMAML, the
more so the fewer drawings there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from rich.console import Console

from .._learner import Learner
from ..data.splits import NUM_SUPPORT_DRAWINGS
from ..runs.conditions import Condition, learn_conditions
from ..runs.errors import UserError
from ..runs.folder import RunFolder
from ..runs.meta import Setup
from ..runs.search import with_values
from ..runs.studies import Range
from ..runs.trackers import Tracker
from . import aug_omniglot
from .aug_omniglot import ALGORITHMS, CLASSES, INSTANCES

__all__ = ["ALGORITHMS", "PRESETS", "Config", "learned", "preset_config", "run", "search_space", "setup"]

NUM_ALPHABETS = (5, 10, 15, 20)
# The paper's, and those of its main text: K = 1, and T = 15.
_GRID = tuple((alphabets, instances) for alphabets in NUM_ALPHABETS for instances in INSTANCES)
_SLICES = (*((count, 1) for count in NUM_ALPHABETS), *((15, count) for count in INSTANCES[1:]))
# T and K of each condition.
CONDITIONS = {
    "quick": ((5, 1), (10, 1), (10, 3)),
    "slices": _SLICES,
    "others": tuple(pair for pair in _GRID if pair not in _SLICES),
    "grid": _GRID,
}
PRESETS = tuple(CONDITIONS)


@dataclass(frozen=True)
class Config(aug_omniglot.Config):
    # Where conditions have rates of their own.
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"inner_rate"})

    alphabets: tuple[int, ...] = ()
    """T of each condition, training alphabets; the first goes with the first of --instances, and so on."""
    instances: tuple[int, ...] = ()
    """K of each condition, drawings of a character that a task is adapted to."""
    num_alphabets: int = 15
    """T of the condition that `modules` and `test` of the result are about."""
    num_instances: int = 1
    """K of that condition."""
    inner_rates: tuple[float, ...] = ()
    """`inner_rate` of each condition, which is 0 then; without any, the same in all."""
    mean_rates: tuple[float, ...] = ()
    """`mean_rate` of each condition, which is 0 then; without any, the same in all."""
    variance_rates: tuple[float, ...] = ()
    """`variance_rate` of each condition, which is 0 then; without any, the same in all."""
    pairs_at_once: int | None = None
    """So many pairs of a condition and a seed go through an update at a time, to save memory; all by default."""
    long_curves: bool = False
    """Also score adaptation of all modules after ten times as many steps, and on the way there."""


_TOY = {
    "num_updates": 10,
    "tasks_per_update": 2,
    "num_filters": 8,
    "inner_steps": 20,
    "adapt_steps": 20,
    "curve_steps": None,
}

# Second derivatives take memory, and so many pairs are enough to keep a GPU busy.
_AT_ONCE = {"sigma-reptile": 12, "imaml": 12, "sigma-imaml": 12}

# Field -> the field that has its values for all conditions.
_VARIED = {"inner_rate": "inner_rates", "mean_rate": "mean_rates", "variance_rate": "variance_rates"}


def preset_config(algorithm: str, preset: str) -> Config:
    """The presets `small-K` of aug-omniglot in several conditions at once; `slices` and `others` are the `grid`."""
    base = aug_omniglot.preset_config(algorithm, "small-1")
    if preset == "quick":
        base = replace(aug_omniglot.preset_config(algorithm, "quick"), **_TOY)
    pairs = CONDITIONS[preset]
    alphabets, instances = zip(*pairs, strict=True)
    about = (base.num_alphabets, base.num_instances)
    about = about if about in pairs else pairs[0]
    values = {field.name: getattr(base, field.name) for field in fields(base)}
    values |= {"num_alphabets": about[0], "num_instances": about[1], "alphabets": alphabets, "instances": instances}
    if preset != "quick":
        values |= {"pairs_at_once": _AT_ONCE.get(algorithm), **_rates_of_their_own(algorithm, instances)}
    return Config(**values)


def _rates_of_their_own(algorithm: str, instances: Sequence[int]) -> dict[str, Any]:
    """The rates that are not the same in all presets `small-K`."""
    presets = [aug_omniglot.preset_config(algorithm, f"small-{count}") for count in instances]
    rates = {field: tuple(getattr(preset, field) for preset in presets) for field in _VARIED}
    varied = {field: values for field, values in rates.items() if len(set(values)) > 1}
    return dict.fromkeys(varied, 0.0) | {_VARIED[field]: values for field, values in varied.items()}


def search_space(config: Config) -> dict[str, Range]:
    raise UserError("One condition at a time: `shrinx tune aug-omniglot --preset small-K --num-alphabets T`, or `try`.")


def learned(config: Config, run: Any, result: dict[str, Any]) -> Any:
    raise UserError(
        "A run of aug-omniglot-small has a model for every condition, a bank has one: train that condition alone, "
        "`shrinx run aug-omniglot --preset small-K --num-alphabets T`, and make the bank from this run."
    )


def conditions_of(config: Config) -> list[Condition]:
    _check(config)
    rates = {field: getattr(config, many) for field, many in _VARIED.items()}
    return [
        Condition(
            about={"num_alphabets": alphabets, "num_instances": instances},
            numbers={
                "num_alphabets": alphabets,
                "num_present": instances,
                "rates": {
                    field: values[index] if values else getattr(config, field) for field, values in rates.items()
                },
            },
        )
        for index, (alphabets, instances) in enumerate(_pairs(config))
    ]


def reference_of(config: Config) -> int:
    """The place of the condition that the result is about."""
    return _pairs(config).index((config.num_alphabets, config.num_instances))


def setup(config: Config) -> Setup:
    """The condition that the result is about, with room for all the others."""
    conditions = conditions_of(config)
    numbers = conditions[reference_of(config)].numbers
    room = replace(config, num_alphabets=max(config.alphabets), num_instances=max(config.instances))
    shared = aug_omniglot.setup(with_values(room, numbers["rates"]))
    split_alphabets = shared.split
    assert split_alphabets is not None

    def split(seed: int) -> dict[str, Any]:
        # With the same seed, fewer training alphabets are the first of more, and the test alphabets stay the same.
        try:
            parts = split_alphabets(seed)
        except ValueError as error:
            raise UserError(f"--alphabets {max(config.alphabets)} is too much: {error}") from error
        return {"train": parts["train"], "test": parts["test"], **numbers}

    def learner_of(split: dict[str, Any]) -> Learner:
        return aug_omniglot.learner(with_values(config, split["rates"]))

    return replace(
        shared,
        split=split,
        learner_of=learner_of,
        validation_tasks=None,
        chunk=_chunk(config.num_updates, shared.chunk // len(conditions)),
        lanes_at_once=config.pairs_at_once,
    )


def run(config: Config, folder: RunFolder, console: Console | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    return learn_conditions(
        setup(config),
        conditions_of(config),
        folder,
        seed=config.seed,
        reference=reference_of(config),
        long=config.long_curves,
        console=console,
        trackers=trackers,
    )


def _pairs(config: Config) -> list[tuple[int, int]]:
    return list(zip(config.alphabets, config.instances, strict=True))


def _chunk(num_updates: int, most: int) -> int:
    """At most so many updates, which all chunks have: one of another length would be compiled by itself."""
    return max(length for length in range(1, max(most, 1) + 1) if num_updates % length == 0)


def _check(config: Config) -> None:
    count = len(config.alphabets)
    if not count or len(config.instances) != count:
        raise UserError(
            "--alphabets and --instances are T and K of each condition, as many of the one as of the other; got "
            f"{count} and {len(config.instances)}."
        )
    pairs = _pairs(config)
    if len(set(pairs)) < count:
        raise UserError("Every condition, a pair of --alphabets and --instances, may come once only.")
    if (config.num_alphabets, config.num_instances) not in pairs:
        raise UserError(
            f"The result is about T = {config.num_alphabets} and K = {config.num_instances}, which is none of the "
            f"conditions (T, K) {', '.join(map(str, pairs))}: name one with --num-alphabets and --num-instances."
        )
    if min(config.alphabets) < 1 or not 1 <= min(config.instances) <= max(config.instances) <= NUM_SUPPORT_DRAWINGS:
        raise UserError(f"--alphabets must be at least 1 and --instances 1 to {NUM_SUPPORT_DRAWINGS}.")
    if config.batch_size > CLASSES * min(config.instances):
        raise UserError(
            f"--batch-size {config.batch_size} is more than the {CLASSES * min(config.instances)} images of a task "
            f"with --instances {min(config.instances)}."
        )
    for field, many in _VARIED.items():
        rate, rates = getattr(config, field), getattr(config, many)
        one, each = (f"--{name.replace('_', '-')}" for name in (field, many))
        if len(rates) not in (0, count):
            raise UserError(
                f"{each} has {len(rates)} numbers for {count} conditions; give one for each, or none and {one}."
            )
        # The mean may also be held, and plain algorithms have no variances.
        needed = field == "inner_rate" or (field == "variance_rate" and config.algorithm.startswith("sigma"))
        if (rate and rates) or (needed and not rate and not rates):
            raise UserError(
                f"A rate is either {one}, in all conditions, or {each}, in each: for the first add {each} without "
                f"numbers, for the second {one} 0."
            )
    if config.pairs_at_once is not None and config.pairs_at_once < 1:
        raise UserError(f"--pairs-at-once must be at least 1, got {config.pairs_at_once}.")
