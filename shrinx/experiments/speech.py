"""Few-shot text-to-speech (appendix E.2): a new voice from a minute of speech, by WaveNet with 123 modules.

The paper's claim: of all ways to adapt to a new speaker σ-Reptile predicts their speech best, does not overfit however
long it adapts, and needs to move 12 of the 123 layers only.

Runs build on each other, each in a folder of its own, and each can be interrupted and resumed:
pretrain mixes all speakers; reptile and sigma-imaml start `--pretrained` from it and take speakers for tasks,
sigma-reptile from reptile; sea-all trains a network with a table of speakers and then adapts all of it, sea-emb,
`--pretrained` from sea-all, the new speaker's embedding alone.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from .._modules import by_layer
from .._packing import Packing
from .._prior import Prior
from ..data.speech import SpeakerSplit, load_speech, speaker_split
from ..models.wavenet import WaveNet
from ..runs.errors import UserError
from ..runs.folder import RunFolder
from ..runs.interruption import resumable
from ..runs.model import load_prior, save_prior
from ..runs.stages import train_in_chunks
from ..runs.studies import Range
from ..runs.trackers import Tracker
from ..tasks.speech import draw_strings, recordings_of
from .algorithms import make_learner
from .speech_config import ALGORITHMS, MIXED, PRESETS, Config, preset_config
from .speech_network import for_a_new_speaker, learned, network_of
from .speech_results import Evaluation
from .speech_training import Trainer, advance_with, mixed_trainer, task_trainer

__all__ = ["ALGORITHMS", "PRESETS", "Config", "learned", "preset_config", "run", "search_space"]


def search_space(config: Config) -> dict[str, Range]:
    raise UserError("WaveNet is too large to train several side by side, as `tune` and `try` do: vary fields of `run`.")


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
    if config.learn_from == "validation" and config.algorithm in MIXED:
        raise UserError(f"--learn-from is for tasks, and {config.algorithm} mixes all training speakers: leave it out.")
    if config.learn_from == "validation" and config.early_stop:
        raise UserError("--learn-from validation leaves nobody to tell voices when to stop: add --no-early-stop.")
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
    _check_selected(config, len(prior.modules))
    trainer = _trainer(config, network, Packing(prior))
    state, seconds = train_in_chunks(
        folder,
        trainer.init(prior),
        advance_with(trainer, recordings, _training_speakers(config, split, train_key), train_key),
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


def _check_selected(config: Config, num_modules: int) -> None:
    # Modules are selected by learned variances, and a number of them may be adapted at random.
    some = config.algorithm.startswith("sigma") or set(config.adapted) != {"all"}
    if some and config.num_selected > num_modules:
        raise UserError(f"--num-selected {config.num_selected} is more than the {num_modules} modules of the network.")


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


def _training_speakers(config: Config, split: SpeakerSplit, key: jax.Array) -> jax.Array:
    speakers = jnp.asarray(split.validation if config.learn_from == "validation" else split.train)
    if not config.returning:
        return speakers
    if not config.tasks_per_update <= config.returning <= len(speakers):
        fewest, most = config.tasks_per_update, len(speakers)
        raise UserError(
            f"--returning {config.returning}: it takes at least the {fewest} of --tasks-per-update and at most the "
            f"{most} speakers it learns from."
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
