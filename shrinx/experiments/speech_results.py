"""From a trained prior to the numbers and voices of a run; every part is kept in its folder as soon as it is finished.

voices/reference.npz               what test speakers really said: samples, lengths in frames, digits, speakers
voices/all-80-curve-test00.npz     negative log-likelihood of a group of speakers against steps of adaptation
voices/all-80-spoken-test00.npz    what the voices of test speakers say, and after how many steps
voices/all-80-partial-test00/      where adaptation to a group was interrupted, until it is finished
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from .._prior import Prior
from .._types import Params
from ..data.speech import SpeakerSplit
from ..models.wavenet import WaveNet
from ..runs.files import write_atomically
from ..runs.statistics import finite, half_width, summarise
from ..tasks.speech import Recordings, draw_strings, held_out_speakers
from .algorithms import make_solver
from .speech_adapting import Adaptation, adapt_voices
from .speech_modules import receptive_milliseconds, selected_modules, subset, variance_figure
from .speech_voices import Script, best_step, grid, script_of, speak_script

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """Adapts a prior to held-out speakers; where voices stop early, to validation speakers first."""

    config: Any
    network: WaveNet
    prior: Prior
    recordings: Recordings
    split: SpeakerSplit
    numbers: np.ndarray
    """What the data call each speaker; inside, speakers are positions among them."""
    folder: Path
    key: jax.Array
    console: Console | None = None

    def result(self) -> dict[str, Any]:
        """What goes into `result.json`."""
        self._keep("reference", self._reference)
        config, steps = self.config, grid(self.config.adapt_steps)
        tests: dict[str, np.ndarray] = {}
        stops: dict[str, int] = {}
        for label in config.adapted:
            for num_support in config.held_out_support:
                name = f"{label}, {num_support} utterances"
                tests[name], stops[name] = self._of(label, num_support, steps)
        places = {name: steps.index(stop) for name, stop in stops.items()}
        scores = {name: curve[:, places[name]] for name, curve in tests.items()}
        first = next(iter(scores))
        chosen = f"selected, {config.held_out_support[0]} utterances"
        return {
            "metric": {"name": "negative log-likelihood (nats per sample)", "lower_is_better": True},
            **self._modules(),
            "test": {
                "before": summarise(tests[first][None, :, 0]),
                "all": summarise(scores[first][None]),
                "selected": summarise(scores[chosen if chosen in scores else first][None]),
                "only": {},
                "subsets": {name: summarise(score[None]) for name, score in scores.items()},
            },
            "curves": {
                "steps": list(steps),
                "horizon": config.horizon(),
                "series": {name: _series(curve) for name, curve in tests.items()},
            },
            "speech": {
                "stops": stops,
                "test_speakers": self.numbers[self.split.test].tolist(),
                "scores": {name: [finite(float(value)) for value in score] for name, score in scores.items()},
                "receptive_milliseconds": receptive_milliseconds(self.network),
            },
        }

    def _of(self, label: str, num_support: int, steps: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Curves of test speakers when these modules adapt, and the step at which their voices speak."""
        config = self.config
        names = subset(label, self.network, self.prior, count=config.num_selected, seed=config.seed)
        plan = _Plan(label, num_support, ("speaker",) if config.algorithm == "sea-emb" else names)
        stop = steps[-1]
        if config.early_stop:
            stop = best_step(steps, self._curves(plan, "validation", steps, stop))
        return self._curves(plan, "test", steps, stop), stop

    def _curves(self, plan: "_Plan", part: str, steps: tuple[int, ...], stop: int) -> np.ndarray:
        found = []
        for group, members in self._groups(part):
            compute = partial(self._curve, plan, group, members, steps, stop)
            found.append(self._keep(plan.file("curve", group), compute)["curve"])
            shutil.rmtree(self._partial(plan, group), ignore_errors=True)
        return np.concatenate(found)

    def _curve(self, plan: "_Plan", group: str, members: np.ndarray, steps: tuple[int, ...], stop: int) -> Arrays:
        speakers = self.numbers[members]
        what = f"Adapting {plan.label} modules to {plan.num_support} utterances of" if steps[-1] else "Scoring"
        self._say(f"{what} speakers {', '.join(map(str, speakers))} …")
        params, curve = self._adapt(plan, group, members, steps, stop)
        if group.startswith("test"):
            self._keep(plan.file("spoken", group), partial(self._spoken, params, members, stop))
        return {"speakers": speakers, "steps": np.asarray(steps), "curve": np.asarray(curve)}

    def _adapt(
        self, plan: "_Plan", group: str, members: np.ndarray, steps: tuple[int, ...], stop: int
    ) -> tuple[Params, jax.Array]:
        config, speakers = self.config, jnp.asarray(members)
        adaptation = Adaptation(
            self.network,
            self.prior.scale_variance(config.variance_factor(plan.num_support)),
            held_out_speakers(
                self.recordings,
                speakers,
                num_support=plan.num_support,
                num_query=config.num_query,
                num_strings=config.test_strings,
                num_frames=config.test_frames,
            ),
            make_solver(config),
            # By speaker, so that the result does not depend on who is adapted to side by side.
            jax.vmap(lambda speaker: jax.random.fold_in(self.key, speaker))(speakers),
            # Unlike functools' partials these are equal when their parts are, and nothing is compiled twice.
            eqx.Partial(draw_strings, num_strings=config.num_strings, num_frames=config.num_frames),
            plan.names,
        )
        partly = self._partial(plan, group)
        return adapt_voices(adaptation, steps=steps, stop=stop, folder=partly, console=self.console)

    def _partial(self, plan: "_Plan", group: str) -> Path:
        return self.folder / "voices" / plan.file("partial", group)

    def _script(self, members: np.ndarray) -> Script:
        count = self.recordings.starts.shape[-1]
        query = self.recordings.of(jnp.asarray(members)).between(count - self.config.num_query, count)
        return script_of(query, num_strings=self.config.spoken_strings, num_digits=self.config.spoken_digits)

    def _reference(self) -> Arrays:
        script = self._script(self.split.test)
        return {
            "speakers": self.numbers[self.split.test],
            "samples": script.samples,
            "lengths": script.lengths,
            "digits": script.digits,
        }

    def _spoken(self, voices: Params, members: np.ndarray, step: int) -> Arrays:
        script = self._script(members)
        return {
            "speakers": self.numbers[members],
            "samples": speak_script(self.network, voices, script, jax.random.fold_in(self.key, 0)),
            "lengths": script.lengths,
            "digits": script.digits,
            "step": np.asarray(step),
        }

    def _modules(self) -> dict[str, Any]:
        names, sizes = self.prior.modules.names, self.prior.modules.sizes
        variances = np.exp(np.asarray(self.prior.log_variance, np.float64))
        chosen = selected_modules(self.prior, self.config.num_selected)
        modules = [
            {
                "name": name,
                "size": sizes[index],
                "variance": finite(float(variances[index])),
                "variances": [finite(float(variances[index]))],
                "selected": chosen is not None and bool(chosen.mask[index]),
            }
            for index, name in enumerate(names)
        ]
        if chosen is None:
            return {"modules": modules, "fraction": 0.0}
        figures = [variance_figure(self.network, self.prior)]
        return {"modules": modules, "fraction": chosen.fraction, "figures": figures}

    def _groups(self, part: str) -> Iterator[tuple[str, np.ndarray]]:
        members, size = getattr(self.split, part), self.config.voices_at_once
        for first in range(0, len(members), size):
            yield f"{part}{first:02d}", members[first : first + size]

    def _keep(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """What an earlier piece of the run has left under this name, or what `compute` gives, for the next piece."""
        path = self.folder / "voices" / f"{name}.npz"
        if not path.exists():
            arrays: dict[str, Any] = {**compute()}
            write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}

    def _say(self, line: str) -> None:
        if self.console is not None:
            self.console.print(line)


@dataclass(frozen=True)
class _Plan:
    """One way to adapt: which modules, to how many utterances."""

    label: str
    num_support: int
    names: tuple[str, ...] | None

    def file(self, kind: str, group: str) -> str:
        return f"{self.label}-{self.num_support}-{kind}-{group}"


def _series(curves: np.ndarray) -> dict[str, Any]:
    return {
        "mean": [finite(float(value)) for value in curves.mean(axis=0)],
        "ci95": [finite(half_width(column)) for column in curves.T],
    }
