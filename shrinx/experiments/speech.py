"""Few-shot text-to-speech (appendix E.2): a new voice from a minute of speech, by WaveNet with 123 modules.

The paper's claim: of all ways to adapt to a new speaker σ-Reptile predicts their speech best, does not overfit however
long it adapts, and needs to move 12 of the 123 layers only.

Runs build on each other, each in a folder of its own, and each can be interrupted and resumed:
pretrain mixes all speakers; reptile and sigma-imaml start `--pretrained` from it and take speakers for tasks,
sigma-reptile from reptile; sea-all trains a network with a table of speakers and then adapts all of it, sea-emb,
`--pretrained` from sea-all, the new speaker's embedding alone.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from .._modules import by_layer
from .._packing import Packing
from .._prior import Prior
from ..data.speech import load_speech, speaker_split
from ..models.wavenet import WaveNet
from ..runs.errors import UserError
from ..runs.folder import RunFolder
from ..runs.interruption import resumable
from ..runs.model import load_prior, save_prior
from ..runs.stages import train_in_chunks
from ..runs.trackers import Tracker
from ..runs.tune import Range
from ..tasks.speech import draw_strings, recordings_of
from .algorithms import LearnerConfig, make_learner
from .speech_network import for_a_new_speaker, network_of
from .speech_network import learned as learned
from .speech_results import Evaluation
from .speech_training import Trainer, advance_with, mixed_trainer, task_trainer

MIXED = ("pretrain", "sea-all", "sea-emb")
ALGORITHMS = ("sigma-reptile", "reptile", "sigma-imaml", *MIXED)
PRESETS = ("quick", "paper")


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
    num_query: int = 20
    """Utterances of every speaker that adapted networks are judged by."""
    held_out_support: tuple[int, ...] = (80, 40)
    """Utterances of a held-out speaker to adapt to: each number is an evaluation of its own."""
    scale_variances: bool = False
    """Adapt to n utterances with variances n / --num-support times as large: the loss is a mean, and the more it is a
    mean of, the less should the prior weigh."""
    num_validation_speakers: int = 4
    """Speakers that tell baselines when to stop."""
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
    if preset == "paper":
        return config
    return replace(
        config,
        num_updates=min(config.num_updates, 200 if algorithm in MIXED else 5),
        chunk=config.chunk if algorithm in MIXED else 5,
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


def search_space(config: Config) -> dict[str, Range]:
    raise UserError("`tune` trains many networks side by side, which WaveNet is too large for: vary fields of `run`.")


def run(config: Config, folder: RunFolder, console: Console | None, trackers: tuple[Tracker, ...]) -> dict[str, Any]:
    if folder.request.seeds != 1:
        raise UserError("speech runs one seed at a time: give each its --seed and a folder of its own.")
    if jax.process_count() > 1:
        raise UserError("speech runs in one process: leave out --coordinator.")
    if config.pretrained is None and config.num_updates == 0:
        raise UserError(f"{config.algorithm} does not train by itself: name a trained run's folder with --pretrained.")
    if config.keep_best:
        raise UserError("speech hands on the last prior, not the best: leave out --keep-best.")
    if config.pretrained is None and config.mean_rate == 0:
        raise UserError("--mean-rate 0 holds a mean of random weights: name a trained run's folder with --pretrained.")
    if config.returning and config.algorithm in MIXED:
        raise UserError(f"--returning is for tasks, and {config.algorithm} mixes all speakers: leave it out.")
    if config.pretrained is None and config.algorithm not in MIXED and console is not None:
        console.print("Note: the network begins with random weights; --pretrained RUN begins with trained ones.")
    digits = load_speech(config.data_dir)
    recordings = recordings_of(digits)
    _check_enough(config, recordings.starts.shape[-1])
    split = speaker_split(
        digits, seed=config.seed, num_validation=config.num_validation_speakers, num_test=config.num_test_tasks
    )
    network = network_of(config, num_phones=len(digits.phones), num_train=len(split.train))
    init_key, train_key, test_key = (jax.random.fold_in(jax.random.key(config.seed), part) for part in range(3))
    prior = _start(config, network, init_key)
    trainer = _trainer(config, network, Packing(prior))
    state, seconds = train_in_chunks(
        folder,
        trainer.init(prior),
        advance_with(trainer, recordings, _training_speakers(config, jnp.asarray(split.train), train_key), train_key),
        num_steps=config.num_updates,
        chunk=config.chunk,
        on_save=lambda step, state: save_prior(folder.path, step, trainer.prior(state)),
        console=console,
        trackers=trackers,
    )
    network, prior = for_a_new_speaker(network, trainer.prior(state))
    evaluation = Evaluation(
        config, network, prior, recordings, split, np.asarray(digits.speakers), folder.path, test_key, console
    )
    with resumable(folder.path):
        return {**evaluation.result(), "seconds": round(seconds, 1)}


def _check_enough(config: Config, count: int) -> None:
    most, judged_by = max(config.num_support, *config.held_out_support), config.num_query
    if most + judged_by > count:
        raise UserError(
            f"The speakers have {count} utterances each, of which {most} are to be adapted to and {judged_by} to be "
            "judged by: lower --num-support, --held-out-support or --num-query."
        )
    if config.spoken_strings * config.spoken_digits > judged_by:
        raise UserError(
            f"{config.spoken_strings} strings of {config.spoken_digits} are more than the {judged_by} utterances to be "
            "judged by: lower --spoken-strings or --spoken-digits."
        )


def _start(config: Config, network: WaveNet, key: jax.Array) -> Prior:
    """The prior before the first update. One that has learned variances goes on from them."""
    params = network.init(key)
    prior = Prior.create(params, modules=by_layer(params), variance=math.inf)
    if config.pretrained is not None:
        prior = load_prior(config.pretrained, prior)
    if not config.algorithm.startswith("sigma"):
        return Prior.create(prior.mean, modules=prior.modules, variance=math.inf)
    learned = jnp.where(jnp.isposinf(prior.log_variance), math.log(config.variance), prior.log_variance)
    return eqx.tree_at(lambda prior: prior.log_variance, prior, learned)


def _training_speakers(config: Config, speakers: jax.Array, key: jax.Array) -> jax.Array:
    if not config.returning:
        return speakers
    if not config.tasks_per_update <= config.returning <= len(speakers):
        fewest, most = config.tasks_per_update, len(speakers)
        raise UserError(
            f"--returning {config.returning}: it takes at least the {fewest} of --tasks-per-update and at most the "
            f"{most} speakers there are for training."
        )
    return jax.random.permutation(key, speakers)[: config.returning]


def _trainer(config: Config, network: WaveNet, packing: Packing) -> Trainer:
    if config.algorithm in MIXED:
        falling = int(config.decay * config.num_updates)
        begin = config.num_updates - falling
        rate = optax.linear_schedule(config.mean_rate, 0.0, max(falling, 1), transition_begin=begin)
        return mixed_trainer(
            network,
            packing,
            rate,
            num_support=config.num_support,
            num_strings=config.mixed_strings,
            num_frames=config.num_frames,
        )
    draw = partial(draw_strings, num_frames=config.num_frames)
    sample = partial(draw, num_strings=config.num_strings)
    query_sample = partial(draw, num_strings=config.query_strings)
    return task_trainer(
        network,
        packing,
        make_learner(config, sample=sample, query_sample=query_sample),
        num_tasks=config.tasks_per_update,
        num_support=config.num_support,
        num_query=config.num_query,
        num_returning=config.returning,
    )
