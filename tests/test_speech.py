"""Few-shot speech at toy size: voices are tones, and an adapted network hits the pitch of a speaker it never heard."""

import signal
from dataclasses import replace
from functools import partial

import compiled_once
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from speech_files import pitch_of, speech_arrays, speech_folder

import shrinx as sx
from shrinx import _pace
from shrinx.data.audio import decode
from shrinx.data.speech import RATE, SpeakerSplit, spoken_digits
from shrinx.experiments import find_experiment, speech, speech_adapting, speech_results
from shrinx.experiments.speech_adapting import Adaptation, adapt_voices
from shrinx.experiments.speech_modules import (
    by_depth,
    receptive_milliseconds,
    selected_modules,
    subset,
    variance_figure,
)
from shrinx.experiments.speech_training import task_trainer
from shrinx.experiments.speech_voices import best_step, grid
from shrinx.models.wavenet import WaveNet
from shrinx.report.schema import RESULT, mismatch, uneven
from shrinx.runs import checkpoint
from shrinx.runs.errors import UserError
from shrinx.runs.execute import execute
from shrinx.runs.folder import Request, RunFolder, read_metrics
from shrinx.runs.model import load_prior, save_prior
from shrinx.runs.stages import train_in_chunks
from shrinx.tasks.speech import draw_strings, held_out_speakers, recordings_of

TOY = {
    "num_test_tasks": 2,
    # As many, so that adapting to them is the same program.
    "num_validation_speakers": 2,
    "num_support": 8,
    "num_query": 2,
    "held_out_support": (8,),
    "test_strings": 2,
    "test_frames": 5,
    "num_frames": 5,
    "blocks_per_cycle": 2,
    "early_stop": False,
    "adapted": ("all",),
    "mean_rate": 1e-2,
    "decay": 0.0,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speech_folder(tmp_path_factory.mktemp("speech"), **speech_arrays(num_speakers=8))


@pytest.fixture(autouse=True)
def relaxed():
    # As users have it; inside optax and in schedules types meet that strictness would keep apart.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def run(path, data, algorithm, *, seeds=1, resume=False, **changes):
    config = find_experiment("speech").config(algorithm, "quick")
    config = replace(config, data_dir=str(data), **{**TOY, **changes})
    return execute(Request("speech", algorithm, "quick", seeds, config), path, resume=resume, report=False)


def heard_pitch(levels):
    wave = decode(levels)
    return np.argmax(np.abs(np.fft.rfft(wave * np.hanning(len(wave))))) * RATE / len(wave)


def test_after_adaptation_a_new_voice_has_its_own_pitch(tmp_path, data, monkeypatch):
    monkeypatch.setattr(speech, "train_in_chunks", compiled_once.train_in_chunks)
    run(tmp_path / "pretrained", data, "pretrain", num_updates=150, chunk=150, adapt_steps=0)
    meta = {"num_updates": 1, "warmup": 0, "chunk": 1, "inner_steps": 4, "mean_rate": 1e-4, "inner_rate": 1e-2}
    started = {**meta, "pretrained": str(tmp_path / "pretrained"), "adapt_steps": 60}
    result = run(tmp_path / "run", data, "sigma-reptile", **started)

    with np.load(tmp_path / "run" / "voices" / "all-8-spoken-test00.npz") as spoken:
        speakers, samples, step = spoken["speakers"], spoken["samples"], int(spoken["step"])
    with np.load(tmp_path / "pretrained" / "voices" / "all-8-spoken-test00.npz") as spoken:
        before = spoken["samples"]
    assert (speakers.tolist(), step) == (result["speech"]["test_speakers"], 60)
    for row, number in enumerate(speakers.tolist()):
        pitch = pitch_of((number - 1) // 2)  # The data number speakers 1, 3, 5, …
        assert heard_pitch(samples[row, 0]) == pytest.approx(pitch, rel=0.02)
        assert heard_pitch(before[row, 0]) != pytest.approx(pitch, rel=0.02)

    curve = result["curves"]["series"]["all, 8 utterances"]["mean"]
    assert curve[-1] < 0.5 * curve[0]
    assert result["test"]["all"]["mean"] == pytest.approx(curve[-1])
    assert len(result["modules"]) == 4 + 4 * 2 - 1
    assert sum(module["selected"] for module in result["modules"]) == 4
    assert len({module["variance"] for module in result["modules"]}) > 1
    assert (mismatch(result, RESULT), uneven(result)) == (None, None)

    # All parts are there: a run that was cut short before its end writes the same result without computing them again.
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "voices").iterdir()}
    (tmp_path / "run" / "result.json").unlink()
    again = run(tmp_path / "run", data, "sigma-reptile", resume=True, **started)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "voices").iterdir()} == kept
    assert {**again, "seconds": None} == {**result, "seconds": None}


def test_sea_adapts_the_embedding_alone(tmp_path, data, monkeypatch):
    moved = set()

    def watched(adaptation, **options):
        params, curve = adapt_voices(adaptation, **options)
        after, before = (jax.tree_util.tree_leaves_with_path(tree) for tree in (params, adaptation.prior.mean))
        for (path, ours), (_, theirs) in zip(after, before, strict=True):
            if not np.array_equal(ours, np.broadcast_to(theirs, ours.shape)):
                moved.add(jax.tree_util.keystr(path, simple=True, separator="/"))
        return params, curve

    monkeypatch.setattr(speech_results, "adapt_voices", watched)
    tiny = {"blocks_per_cycle": 1, "chunk": 2, "test_strings": 1}
    run(tmp_path / "all", data, "sea-all", num_updates=2, adapt_steps=0, **tiny)
    assert moved == set()
    trained = {"num_updates": 0, "pretrained": str(tmp_path / "all"), **tiny}
    result = run(tmp_path / "emb", data, "sea-emb", adapt_steps=2, **trained)
    assert moved == {"speaker/table"}
    sizes = {module["name"]: module["size"] for module in result["modules"]}
    assert (sizes["speaker"], sizes["block00/speaker"]) == (64, 64 * 32)
    with pytest.raises(UserError, match="belongs to another model"):
        run(tmp_path / "other", data, "sea-emb", residual_channels=8, **trained)


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("reptile", {"seeds": 2}, "one seed at a time"),
        ("sea-emb", {"num_updates": 0}, "sea-emb does not train by itself: name a trained run's folder"),
        ("sigma-reptile", {"mean_rate": 0.0}, "--mean-rate 0 holds a mean of random weights: name a trained run's"),
        ("reptile", {"keep_best": True}, "leave out --keep-best"),
        ("pretrain", {"returning": 2}, "--returning is for tasks, and pretrain mixes all speakers"),
        ("reptile", {"returning": 1}, "--returning 1: it takes at least the 2 of --tasks-per-update and at most the 4"),
        ("reptile", {"returning": 5}, "--returning 5: it takes at least"),
        ("pretrain", {"learn_from": "validation"}, "--learn-from is for tasks, and pretrain mixes all training"),
        (
            "reptile",
            {"learn_from": "validation", "early_stop": True},
            "nobody to tell voices when to stop: add --no-ea",
        ),
        ("reptile", {"pretrained": "nowhere"}, "There is no model in nowhere/model; name the folder of a run"),
        ("reptile", {"data_dir": "nowhere"}, "There is no nowhere/audiomnist16k.npz"),
        ("reptile", {"num_test_tasks": 6}, "8 speakers cannot be split"),
        ("sigma-reptile", {"num_selected": 36}, "--num-selected 36 is more than the 11 modules of the network"),
        ("reptile", {"num_selected": 36, "adapted": ("random",)}, "--num-selected 36 is more than the 11 modules"),
        (
            "reptile",
            {"held_out_support": (8, 9)},
            "have 10 utterances each, of which 9 are to be adapted to and 2 to be",
        ),
        ("reptile", {"num_support": 9}, "have 10 utterances each, of which 9"),
        ("reptile", {"spoken_digits": 3}, "1 strings of 3 are more than the 2 utterances to be judged by"),
    ],
)
def test_one_sentence_says_what_is_wrong(tmp_path, data, algorithm, changes, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path / "run", changes.pop("data_dir", data), algorithm, **changes)
    with pytest.raises(UserError, match="vary fields of `run`"):
        find_experiment("speech").module.search_space(find_experiment("speech").config(algorithm, "quick"))


@pytest.mark.parametrize("algorithm", find_experiment("speech").algorithms)
@pytest.mark.parametrize("preset", find_experiment("speech").presets)
def test_presets_learn_variances_exactly_where_their_name_says_so(algorithm, preset):
    config = find_experiment("speech").config(algorithm, preset)
    assert ("selected" in config.adapted) == algorithm.startswith("sigma") == (not config.early_stop)
    assert config.num_updates % config.chunk == 0 or config.num_updates < config.chunk
    assert (config.adapt_steps == 10_000) == (preset == "paper")


NETWORK = WaveNet(dilations=(1, 2, 4), residual_channels=2, skip_channels=2, output_channels=2)


def prior_of(network, variance):
    params = jax.eval_shape(network.init, jax.random.key(0))
    return sx.Prior.create(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params), variance=variance)


def test_sets_of_modules():
    names = prior_of(NETWORK, 1.0).modules.names
    variances = {name: 5.0 if name in ("block01/dilated", "output0") else 1e-3 for name in names}
    prior = prior_of(NETWORK, variances)
    options = {"count": 2, "seed": 0}
    assert subset("all", NETWORK, prior, **options) is None
    assert set(subset("selected", NETWORK, prior, **options)) == {"block01/dilated", "output0"}
    assert subset("last", NETWORK, prior, **options) == ("output0", "output1")
    assert len(set(subset("random", NETWORK, prior, **options))) == 2
    assert set(by_depth(NETWORK, prior)) == set(names)
    assert by_depth(NETWORK, prior)[2:4] == ("block00/dilated", "block00/condition")
    figure = variance_figure(NETWORK, prior)
    lines = {line["label"]: (line["x"], np.round(line["y"], 3).tolist()) for line in figure["series"]}
    assert lines["dilated"] == ([0, 1, 2], [0.001, 5.0, 0.001])
    assert lines["residual"] == ([0, 1], [0.001, 0.001])
    assert receptive_milliseconds(NETWORK) == [2 / 16, 4 / 16, 8 / 16]
    plain = prior_of(NETWORK, float("inf"))
    assert selected_modules(plain, 2) is None
    with pytest.raises(UserError, match="needs learned variances"):
        subset("selected", NETWORK, plain, **options)


def test_voices_are_those_of_the_step_at_which_they_stop():
    """And the whole curve is measured all the same."""
    recordings = recordings_of(spoken_digits(speech_arrays(num_speakers=2)))
    frames = {"num_strings": 1, "num_frames": 5}
    tasks = held_out_speakers(recordings, jnp.arange(2), num_support=4, num_query=2, **frames)
    keys, solver = jax.random.split(jax.random.key(0), 2), sx.ProximalAdam(1e-2)
    prior = sx.Prior.create(NETWORK.init(jax.random.key(1)), variance=1e3)
    sample = eqx.Partial(draw_strings, **frames)
    loss_fn, adaptation = NETWORK.negative_log_likelihood, Adaptation(NETWORK, prior, tasks, solver, keys, sample)
    early, late = (adapt_voices(adaptation, steps=(0, 2, 5), stop=stop) for stop in (2, 5))
    np.testing.assert_array_equal(early[1], late[1])

    @jax.jit
    @jax.vmap
    def reference(support, query, key):
        params = sx.adapt(loss_fn, prior, support, solver, num_steps=2, key=key, sample=sample).params
        return params, loss_fn(params, query)

    params, score = reference(tasks.support, tasks.query, keys)
    np.testing.assert_allclose(early[1][:, 1], score, rtol=1e-3)
    for ours, expected, later in zip(*map(jax.tree.leaves, (early[0], params, late[0])), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        assert not np.allclose(later, expected, atol=1e-5)


@pytest.mark.parametrize("moment", [1, 2, 3, 6])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_adaptation_in_pieces_is_adaptation_in_one(tmp_path, monkeypatch, moment, after):
    recordings = recordings_of(spoken_digits(speech_arrays(num_speakers=2)))
    frames = {"num_strings": 1, "num_frames": 5}
    tasks = held_out_speakers(recordings, jnp.arange(2), num_support=4, num_query=2, **frames)
    prior = sx.Prior.create(NETWORK.init(jax.random.key(1)), variance=1e3)
    solver, sample = sx.Averaged(sx.ProximalAdam(1e-2), 2), eqx.Partial(draw_strings, **frames)
    adaptation = Adaptation(NETWORK, prior, tasks, solver, jax.random.split(jax.random.key(0), 2), sample)
    wanted = {"steps": (0, 1, 4, 9), "stop": 4}
    whole = adapt_voices(adaptation, **wanted)

    monkeypatch.setattr(_pace, "LONGEST", -1.0)  # No piece is ever made longer than one step.
    monkeypatch.setattr(_pace, "SHORTEST", -1.0)
    calls, piece = [], speech_adapting.advance

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == moment and not after:
            raise KeyboardInterrupt
        voices = piece(*arguments)
        if len(calls) == moment:
            raise KeyboardInterrupt
        return voices

    monkeypatch.setattr(speech_adapting, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adapt_voices(adaptation, **wanted, folder=tmp_path)
    # The first piece is no step, only a look at what is there without one.
    assert [int(path.stem) for path in tmp_path.iterdir()] == ([moment - 2] if moment > 2 else [])
    params, curve = adapt_voices(adaptation, **wanted, folder=tmp_path)
    assert len(calls) == (11 if moment > 2 else 10 + moment)
    np.testing.assert_allclose(curve, whole[1], rtol=1e-6)
    for ours, expected in zip(*map(jax.tree.leaves, (params, whole[0])), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_a_run_that_is_terminated_while_it_adapts_goes_on(tmp_path, data, monkeypatch):
    """And nothing is left of the interruption in the end."""
    tiny = {"blocks_per_cycle": 1, "chunk": 2, "test_strings": 1, "num_updates": 2, "adapt_steps": 6}
    whole = run(tmp_path / "whole", data, "reptile", **tiny)
    piece = speech_adapting.advance

    def terminated(adaptation, voices, first, *rest):
        if int(first) == 3:
            signal.raise_signal(signal.SIGTERM)
        return piece(adaptation, voices, first, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(speech_adapting, "advance", terminated)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", data, "reptile", **tiny)
    voices = tmp_path / "cut" / "voices"
    assert [path.name for path in voices.glob("*-partial-*/*")] == ["0000000003.npz"]
    assert run(tmp_path / "cut", data, "reptile", resume=True, **tiny)["curves"] == whole["curves"]
    assert not list(voices.glob("*-partial-*"))


def test_baselines_stop_where_validation_speakers_are_predicted_best():
    steps = grid(1000)
    assert (steps[0], steps[1], steps[-1]) == (0, 1, 1000)
    curves = np.array([[3.0, 2.0, 1.0, 2.0], [3.0, 1.0, 1.5, 4.0]])
    assert best_step((0, 10, 100, 1000), curves) == 100
    curves[0, 2] = np.nan
    assert best_step((0, 10, 100, 1000), curves) == 10


def request():
    return Request("speech", "pretrain", "quick", 1, find_experiment("speech").config("pretrain", "quick"))


def test_training_in_pieces_is_training_in_one(tmp_path):
    def advance(state, step, length):
        for place in range(step, step + length):
            state = state * 1.5 + place
        return state, {"query_loss": [float(state)]}, "note"

    def interrupted(state, step, length):
        if step == 4:
            raise KeyboardInterrupt
        return advance(state, step, length)

    def train(name, advance, resume=False):
        saved = []
        folder = RunFolder.open(tmp_path / name, request(), resume=resume)
        keep = {"on_save": lambda step, state: saved.append((step, float(state)))}
        state, seconds = train_in_chunks(folder, jnp.ones(()), advance, num_steps=9, chunk=2, **keep)
        assert seconds >= 0
        return float(state), [row["query_loss"] for row in read_metrics(folder.path)], saved

    whole = train("whole", advance)
    with pytest.raises(KeyboardInterrupt):
        train("pieces", interrupted)
    assert checkpoint.restore(tmp_path / "pieces" / "checkpoints", jnp.ones(()))[0] == 4
    pieces = train("pieces", advance, resume=True)
    assert pieces == whole
    assert whole[2] == [(9, whole[0])]


@pytest.mark.parametrize(("learn_from", "speakers"), [("train", range(6)), ("validation", range(6, 9))])
@pytest.mark.parametrize("returning", [0, 2])
def test_whom_a_prior_is_learned_from(learn_from, speakers, returning):
    split = SpeakerSplit(np.arange(6), np.arange(6, 9), np.arange(9, 11))
    config = find_experiment("speech").config("sigma-reptile", "quick")
    config = replace(config, learn_from=learn_from, returning=returning)
    chosen = speech._training_speakers(config, split, jax.random.key(0)).tolist()
    assert set(chosen) <= set(speakers)
    assert len(set(chosen)) == len(chosen) == (returning or len(speakers))


def test_speakers_that_come_back_go_on():
    """Each by its own steps; a learner at rest leaves the prior alone and judges ever longer adaptations."""
    recordings = recordings_of(spoken_digits(speech_arrays(num_speakers=3)))
    prior, still = sx.Prior.create(NETWORK.init(jax.random.key(1)), variance=1e3), optax.sgd(0.0)
    draw = partial(draw_strings, num_strings=1, num_frames=5)
    common = {
        "optimiser": still,
        "variance_optimiser": still,
        "variance_adjoint": sx.FirstOrder(),
        "query_sample": draw,
    }
    learner = sx.sigma_reptile(sx.ProximalAdam(1e-2), num_steps=4, sample=draw, **common)
    sizes = {"num_tasks": 2, "num_support": 4, "num_query": 2, "num_returning": 3}
    trainer = task_trainer(NETWORK, sx.Packing(prior), learner, **sizes)
    state, update, losses = trainer.init(prior), jax.jit(trainer.update), []
    for index in range(12):
        state, (loss, failed) = update(state, recordings, jnp.arange(3), jax.random.key(index))
        losses.append(float(loss))
        assert not failed
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.2
    counts = state.progress.solver.num_steps
    assert int(counts.sum()) == 12 * 2 * 4
    assert (counts > 4).all()


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("reptile", {}, 100),
        ("sigma-reptile", {"num_updates": 80, "tasks_per_update": 12, "returning": 12}, 8000),
        ("sigma-reptile", {"num_updates": 80, "tasks_per_update": 6, "returning": 12}, 4000),
        ("sigma-reptile", {"num_updates": 0}, None),
        ("pretrain", {}, None),
    ],
)
def test_how_far_meta_training_looks_ahead(algorithm, changes, expected):
    assert replace(find_experiment("speech").config(algorithm, "paper"), **changes).horizon() == expected


@pytest.mark.parametrize(("scaled", "expected"), [(False, 5.0), (True, 2.5)])
def test_variances_for_half_the_utterances(tmp_path, monkeypatch, scaled, expected):
    monkeypatch.setattr(speech_results, "adapt_voices", lambda adaptation, **_: (adaptation.prior, jnp.zeros(2)))
    config = replace(find_experiment("speech").config("sigma-reptile", "quick"), **TOY, scale_variances=scaled)
    recordings = recordings_of(spoken_digits(speech_arrays(num_speakers=2)))
    members = np.arange(2)
    split = SpeakerSplit(members, members, members)
    evaluation = speech_results.Evaluation(
        config, NETWORK, prior_of(NETWORK, 5.0), recordings, split, members, tmp_path, jax.random.key(0)
    )
    assert config.num_support == 8
    prior, _ = evaluation._adapt(speech_results._Plan("all", 4, None), "test00", members, (0, 1), 1)
    np.testing.assert_allclose(prior.variance, expected, rtol=1e-6)


def test_a_model_is_read_by_another_run(tmp_path):
    prior = prior_of(NETWORK, 3.0)
    save_prior(tmp_path, 5, prior)
    save_prior(tmp_path, 7, prior)
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["0000000007.npz"]
    restored = load_prior(tmp_path, prior_of(NETWORK, 1.0))
    np.testing.assert_array_equal(restored.log_variance, prior.log_variance)
