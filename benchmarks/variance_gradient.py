"""Gradients of the variances of a speech model, beside what the loss really does when they change.

python -m benchmarks.variance_gradient RUN [--speakers 6] [--steps 900] [--variance 100] [--further 400] [--out FILE]

RUN is a finished run of `shrinx run speech --preset small-cpu --algorithm reptile`. Training speakers adapt from its
mean for `--steps` steps under one variance for all modules. Then the derivative of their query loss with respect to the
log-variances is taken in several ways, summed over kinds of modules, beside central differences: all variances of a
kind by e^0.7 and by e^-0.7, and `--further` steps more with the same mini-batches.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import shrinx as sx
from shrinx._packing import Packing
from shrinx.data.speech import load_speech, speaker_split
from shrinx.experiments import speech
from shrinx.experiments.speech_network import network_of
from shrinx.runs.folder import environment
from shrinx.runs.model import load_prior
from shrinx.tasks.speech import draw_strings, recordings_of, tasks_of

WAYS = {
    "first order": sx.FirstOrder(),
    "diagonal": sx.Implicit(sx.Diagonal(), batches=8),
    "10 CG steps": sx.Implicit(sx.CG(max_steps=10), batches=8),
    "30 CG steps": sx.Implicit(sx.CG(max_steps=30), batches=8),
}
WIDTH = 0.7
QUERY_STRINGS = 48
AT_ONCE = 100
"""Steps in one compiled call."""


class Study:
    """Some training speakers, adapted from one mean."""

    def __init__(self, run: Path, num_speakers: int, variance: float):
        config = speech.preset_config("sigma-reptile", "small-cpu")
        digits = load_speech()
        split = speaker_split(
            digits, seed=config.seed, num_validation=config.num_validation_speakers, num_test=config.num_test_tasks
        )
        network = network_of(config, num_phones=len(digits.phones), num_train=len(split.train))
        params = network.init(jax.random.key(0))
        like = sx.Prior.create(params, modules=sx.by_layer(params), variance=variance)
        prior = sx.Prior.create(load_prior(str(run), like).mean, modules=like.modules, variance=variance)
        packing = Packing(prior)
        self.prior = packing.pack_prior(prior)
        self.loss_fn = packing.loss_fn(network.negative_log_likelihood)
        self.sample = partial(draw_strings, num_strings=config.num_strings, num_frames=config.num_frames)
        tasks = tasks_of(
            recordings_of(digits),
            jnp.asarray(split.train[:num_speakers]),
            num_support=config.num_support,
            num_query=config.num_query,
        )
        draw = partial(draw_strings, num_strings=QUERY_STRINGS, num_frames=config.num_frames)
        query = jax.vmap(draw)(jax.random.split(jax.random.key(1), num_speakers), tasks.query)
        self.tasks = sx.Task(tasks.support, query)
        self.solver = sx.Averaged(sx.ProximalAdam(config.inner_rate), config.average)
        self.progress = self.learner(sx.FirstOrder(), 1).progress(self.prior, num_speakers)

    def learner(self, adjoint: sx.AbstractAdjoint, num_steps: int) -> sx.Learner:
        still = optax.sgd(0.0)
        return sx.Learner(
            sx.Reptile(adjoint),
            self.solver,
            num_steps=num_steps,
            optimiser=still,
            variance_optimiser=still,
            sample=self.sample,
        )

    def adapt(self, prior: sx.Prior, progress: sx.Progress, num_steps: int, key: jax.Array) -> tuple:
        """Go on for so many steps; the progress, and the query loss then."""
        learner = self.learner(sx.FirstOrder(), AT_ONCE)
        for place in range(num_steps // AT_ONCE):
            tasks = replace(self.tasks, progress=progress)
            _, info = _gradient(learner, self.loss_fn, prior, tasks, jax.random.fold_in(key, place))
            progress = info.progress
        return progress, float(info.query_loss)

    def gradient(self, adjoint: sx.AbstractAdjoint) -> np.ndarray:
        tasks = replace(self.tasks, progress=self.progress)
        gradient, _ = _gradient(self.learner(adjoint, 1), self.loss_fn, self.prior, tasks, jax.random.key(4))
        return np.asarray(gradient.log_variance)

    def difference(self, chosen: np.ndarray, further: int) -> float:
        """Of the query loss, by the log-variances of the modules that are chosen."""

        def after(shift: float) -> float:
            moved = self.prior.log_variance + shift * jnp.asarray(chosen, jnp.float32)
            prior = eqx.tree_at(lambda prior: prior.log_variance, self.prior, moved)
            return self.adapt(prior, self.progress, further, jax.random.key(3))[1]

        return (after(WIDTH) - after(-WIDTH)) / (2 * WIDTH)


@eqx.filter_jit
def _gradient(learner, loss_fn, prior, tasks, key):
    return learner.gradient(loss_fn, prior, tasks, key=key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--speakers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--variance", type=float, default=100.0)
    parser.add_argument("--further", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    study = Study(options.run, options.speakers, options.variance)
    study.progress, loss = study.adapt(study.prior, study.progress, options.steps, jax.random.key(2))
    kinds = np.array([name.split("/")[-1] for name in study.prior.modules.names])
    several = [kind for kind in dict.fromkeys(kinds) if np.sum(kinds == kind) > 1]
    groups = {"all": np.ones(len(kinds), bool), **{kind: kinds == kind for kind in several}}
    print(f"query loss after {options.steps} steps: {loss:.4f}", flush=True)
    print("| way | " + " | ".join(groups) + " |\n|---|" + "---:|" * len(groups))
    rows = {}
    for way, adjoint in WAYS.items():
        gradient = study.gradient(adjoint)
        rows[way] = {name: float(gradient[chosen].sum()) for name, chosen in groups.items()}
        print(f"| {way} | " + " | ".join(f"{value:+.5f}" for value in rows[way].values()) + " |", flush=True)
    rows["differences"] = {name: study.difference(chosen, options.further) for name, chosen in groups.items()}
    print("| differences | " + " | ".join(f"{value:+.5f}" for value in rows["differences"].values()) + " |")
    if options.out is not None:
        about = {key: value for key, value in vars(options).items() if key not in ("run", "out")}
        written = {"about": __doc__, "query loss": loss, "gradients": rows, **about, **environment()}
        options.out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
