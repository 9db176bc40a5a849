"""The paper's experiments, one readable file each: a configuration whose presets are the paper's tables, and a run."""

import importlib
from dataclasses import dataclass
from typing import Any

from ..runs.errors import UserError

# Name -> (module, one line). The modules are imported when they are asked for.
EXPERIMENTS = {
    "aug-omniglot": (
        "aug_omniglot",
        "the 20 characters of an alphabet, scaled, shifted and turned, in 100 steps",
    ),
    "aug-omniglot-small": (
        "aug_omniglot_small",
        "the same with few alphabets and few drawings, in all conditions at once",
    ),
    "omniglot": ("omniglot", "five characters, one drawing of each: standard few-shot Omniglot"),
    "miniimagenet": ("miniimagenet", "five kinds of things, one photograph of each"),
    "normal": ("normal", "one parameter per task, in closed form: which estimators of the prior exist, and where"),
    "linear": ("linear", "two groups of parameters seen through a linear map: learned rates against learned variances"),
    "swirl": ("swirl", "the same through a swirl, where adaptation takes a thousand steps"),
    "speech": ("speech", "a new voice from a minute of speech: which layers of WaveNet learn it"),
    "sinusoid": ("sinusoid", "few-shot sinusoid regression: which layers of a small network are task-specific"),
}


@dataclass(frozen=True)
class Experiment:
    """What every file in this folder has: `Config`, `ALGORITHMS`, `PRESETS`, `preset_config` and `run`."""

    name: str
    module: Any

    @property
    def algorithms(self) -> tuple[str, ...]:
        return self.module.ALGORITHMS

    @property
    def presets(self) -> tuple[str, ...]:
        return self.module.PRESETS

    def config(self, algorithm: str, preset: str) -> Any:
        """The configuration of a preset; every field can be changed from there."""
        if algorithm not in self.algorithms:
            raise UserError(f"{self.name} has no algorithm {algorithm!r}; known: {', '.join(self.algorithms)}.")
        if preset not in self.presets:
            raise UserError(f"{self.name} has no preset {preset!r}; known: {', '.join(self.presets)}.")
        return self.module.preset_config(algorithm, preset)


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"Unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}.")
    return Experiment(name, importlib.import_module(f"{__name__}.{EXPERIMENTS[name][0]}"))
