"""The settings of few-shot text-to-speech, and its presets."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from .algorithms import LearnerConfig

MIXED = ("pretrain", "sea-all", "sea-emb")
ALGORITHMS = ("sigma-reptile", "reptile", "sigma-imaml", *MIXED)
PRESETS = ("quick", "small-cpu", "paper")


@dataclass(frozen=True)
class Config(LearnerConfig):
    """`num_test_tasks` are the test speakers, `adapt_steps` how far their curves go (0 scores them as they are)."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"adapt_steps", "returning"})

    pretrained: str | None = None
    """Folder of a run to start from; random weights if not given."""
    num_support: int = 80
    """Utterances of a training speaker that are adapted to (or mixed)."""
    returning: int = 0
    """So many training speakers, drawn by the seed, go on from where their last update left them, not from the mean;
    the others rest. Variances are then learned from far longer adaptations than --inner-steps. Checkpoints hold a
    network or more for each. 0: all speakers, always from the mean."""
    learn_from: Literal["train", "validation"] = "train"
    """Speakers that the prior is learned from. A mean fits those it was trained on better than it fits anybody new, so
    that variances learned from them may be too small; a mean that is held may take its variances from the validation
    speakers, whom it has not heard."""
    num_query: int = 20
    """Utterances of every speaker that adapted networks are judged by."""
    held_out_support: tuple[int, ...] = (80, 40)
    """Utterances of a held-out speaker to adapt to: each number is an evaluation of its own."""
    scale_variances: bool = False
    """Adapt to n utterances with variances n / --num-support times as large: the loss is a mean, and the more it is a
    mean of, the less should the prior weigh."""
    num_validation_speakers: int = 4
    """Speakers that tell baselines when to stop, or that variances are learned from (--learn-from validation)."""
    num_strings: int = 4
    """Strings of speech in a step of adaptation."""
    query_strings: int = 16
    """Strings that a meta-gradient is taken on: more of them than in a step, since there is one query a task only."""
    mixed_strings: int = 16
    """Strings in a step of pretraining."""
    num_frames: int = 100
    """Length of these strings, in frames of 5 ms."""
    test_strings: int = 8
    """Strings that a held-out speaker's query utterances are cut into."""
    test_frames: int = 300
    """Their length."""
    adapted: tuple[Literal["all", "selected", "random", "last"], ...] = ("all",)
    """Which modules adapt to held-out speakers, each an evaluation of its own: all, those of largest variance, or as
    many at random or nearest to the output."""
    num_selected: int = 12
    """How many modules are selected."""
    early_stop: bool = True
    """Let voices speak as they are where validation speakers are predicted best; otherwise after the last step."""
    voices_at_once: int = 5
    """Held-out speakers adapted side by side: what is computed and kept in one go."""
    spoken_strings: int = 4
    """Strings that every test voice speaks."""
    spoken_digits: int = 5
    """Digits in such a string."""
    cycles: int = 3
    """Cycles of dilations."""
    blocks_per_cycle: int = 10
    """Blocks in a cycle, each with twice the dilation of the one before."""
    residual_channels: int = 128
    """Channels of the residual blocks."""
    skip_channels: int = 64
    """Channels of the skip outputs."""
    output_channels: int = 256
    """Channels between the two output layers."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What the blocks are computed in."""
    unroll: bool = True
    """The network's blocks one by one, not as a loop: fewer copies, more to compile."""
    remat: bool = False
    """Compute parts of the network again for its gradient instead of keeping them: less memory, more time."""
    chunk: int = 20
    """Updates between checkpoints."""
    data_dir: str | None = None
    """Where audiomnist16k.npz is, or a file that `data prepare-speech` wrote; the folder SHRINX_DATA by default."""

    def horizon(self) -> int | None:
        """Steps of the longest adaptations that a run's prior is learned from, if it is learned from any."""
        if self.algorithm in MIXED or not self.num_updates:
            return None
        visits = self.num_updates * self.tasks_per_update / self.returning if self.returning else 1
        return round(visits * self.inner_steps)

    def variance_factor(self, num_utterances: int) -> float:
        """What variances are multiplied by for a speaker of so many."""
        return num_utterances / self.num_support if self.scale_variances else 1.0


def preset_config(algorithm: str, preset: str) -> Config:
    """`paper` has the paper's network and 10,000 steps of adaptation; the rest is made for one GPU, see the docs."""
    mixed: dict[str, Any] = {"num_updates": 20_000, "mean_rate": 1e-3, "decay": 0.3, "chunk": 500}
    tasks: dict[str, Any] = {"num_updates": 300, "decay": 0.3, "tasks_per_update": 4, "chunk": 5}
    sigma: dict[str, Any] = {
        **tasks,
        "mean_rate": 3e-5,
        "variance": 1e3,
        "variance_rate": 3e-2,
        "regulariser": 1e-7,
        "early_stop": False,
        "adapted": ("all", "selected"),
    }
    # It holds Reptile's mean, which took many short adaptations to all speakers. Variances take few but long ones, to
    # some: overfitting is what they are learned from, and it comes after hundreds of steps.
    shrinking: dict[str, Any] = {
        "num_updates": 120,
        "chunk": 4,
        "tasks_per_update": 12,
        "returning": 12,
        "warmup": 20,
        "average_training": True,
        "num_support": 40,
        "scale_variances": True,
        "query_strings": 8,
        "mean_rate": 0.0,
        "variance": 100.0,
        "variance_rate": 0.1,
        "cg_steps": 0,
    }
    settings: dict[str, dict[str, Any]] = {
        "pretrain": mixed,
        "sea-all": mixed,
        "sea-emb": {**mixed, "num_updates": 0, "inner_rate": 1e-2},
        "reptile": {**tasks, "mean_optimiser": "sgd", "mean_rate": 0.5},
        "sigma-reptile": {**sigma, **shrinking},
        "sigma-imaml": {**sigma, "cg_steps": 1, "damping": 0.1, "last_steps": 10},
    }
    config = Config(
        **{
            "algorithm": algorithm,
            "solver": "adam",
            "inner_rate": 1e-4,
            "inner_steps": 100,
            "average": 100,
            "adapt_steps": 10_000,
            "num_test_tasks": 10,
            **settings[algorithm],
        }
    )
    return {"paper": lambda config: config, "small-cpu": _small, "quick": _quick}[preset](config)


def _small(config: Config) -> Config:
    """Three seconds of a new voice and 8 blocks of 32 channels: enough to see who overfits, without a GPU."""
    small = replace(
        _quick(config),
        residual_channels=32,
        num_frames=40,
        mixed_strings=8,
        test_strings=4,
        test_frames=100,
        num_validation_speakers=12,
        num_test_tasks=6,
        voices_at_once=6,
        held_out_support=(5,),
        spoken_digits=1,
        inner_rate=1e-2 if config.algorithm == "sea-emb" else 5e-4,
        average=50,
        adapt_steps=1000,
        chunk=50,
    )
    if config.algorithm in MIXED:
        return replace(small, num_updates=min(config.num_updates, 2000))
    tasks = replace(small, num_updates=20, tasks_per_update=4, inner_steps=50, num_support=10, chunk=1)
    if config.algorithm != "sigma-reptile":
        return tasks
    return replace(
        tasks,
        num_updates=48,
        tasks_per_update=12,
        returning=12,
        inner_steps=30,
        warmup=6,
        mean_rate=config.mean_rate,
        variance_rate=0.15,
        adapt_steps=2000,
    )


def _quick(config: Config) -> Config:
    """Small and short enough for a laptop, to see that everything works."""
    mixed = config.algorithm in MIXED
    return replace(
        config,
        num_updates=min(config.num_updates, 200 if mixed else 5),
        chunk=config.chunk if mixed else 5,
        warmup=min(config.warmup, 1),
        returning=min(config.returning, 4),
        # From a mean that is hardly trained, nothing is gained by holding it.
        mean_rate=config.mean_rate or 2e-5,
        inner_rate=1e-3,
        inner_steps=10,
        adapt_steps=50,
        last_steps=min(config.last_steps, 5),
        average=min(config.average, 5),
        tasks_per_update=2,
        num_strings=2,
        query_strings=4,
        mixed_strings=4,
        num_frames=20,
        test_strings=2,
        test_frames=50,
        # As many of both, so that adapting to them is one program.
        num_validation_speakers=4,
        num_test_tasks=4,
        held_out_support=(80,),
        spoken_strings=1,
        spoken_digits=2,
        num_selected=4,
        cycles=1,
        blocks_per_cycle=8,
        residual_channels=16,
        skip_channels=16,
        output_channels=32,
        dtype="float32",
    )
