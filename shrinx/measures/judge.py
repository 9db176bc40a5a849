"""Judge the voices of a finished speech run by all measures, beside real speech."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from ..data.audio import decode
from ..data.progress import Report, silent
from ..data.speech import HOP, NO_DIGIT
from ..runs.errors import UserError
from ..runs.statistics import finite, half_width
from .intelligibility import digit_accuracy, heard_digits
from .naturalness import predicted_mos
from .similarity import bounds, d_vectors, similarity

FILE = "measures.json"
Waves = list[np.ndarray]
ByMethod = dict[str, list[Waves]]
"""Strings of every speaker, for every method; `real` is what speakers said themselves."""
Said = list[tuple[int, ...]]
"""The digits of one speaker's strings."""
One = Callable[[Waves, Said], np.ndarray]
"""Scores, or something to score, of one speaker's strings."""
Each = Callable[[One], dict[str, list[np.ndarray]]]
"""The same of every speaker, for every method."""


def judge(run: Path, measures: Sequence[str], report: Report = silent) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure by measure, means over strings for every speaker, and over speakers with an interval, for each method.

    **Arguments:** `run`, the folder of a speech run; `measures`, any of `MEASURES`; `report` is told of every speaker
    of every method that is judged.
    """
    spoken, digits = read_voices(run)
    total, done = len(measures) * sum(map(len, spoken.values())), 0

    def each(one: One) -> dict[str, list[np.ndarray]]:
        nonlocal done
        scores: dict[str, list[np.ndarray]] = {}
        for method, voices in spoken.items():
            scores[method] = []
            for strings, said in zip(voices, digits, strict=True):
                report(done, total)
                scores[method].append(one(strings, said))
                done += 1
        report(done, total)
        return scores

    for measure in measures:
        by_method = MEASURES[measure](each, digits)
        yield measure, {method: _summary(by_speaker) for method, by_speaker in by_method.items()}


def read_voices(run: Path) -> tuple[ByMethod, list[Said]]:
    """Waves of each method's strings, speaker by speaker in the order of the real ones, and the digits they say."""
    folder = run / "voices"
    if not (folder / "reference.npz").exists():
        missing = folder if run.is_dir() else run
        raise UserError(f"There is no {missing}; name the folder of a speech run, which has its voices in it.")
    real = _load(folder / "reference.npz")
    order = real["speakers"].tolist()
    found: dict[str, dict[int, Waves]] = {"real": _by_speaker(real)}
    for path in sorted(folder.glob("*-spoken-*.npz")):
        found.setdefault(path.name.partition("-spoken-")[0], {}).update(_by_speaker(_load(path)))
    complete = {method: voices for method, voices in found.items() if set(voices) == set(order)}
    digits = [[tuple(string) for string in strings] for strings in real["digits"].tolist()]
    return {method: [voices[speaker] for speaker in order] for method, voices in complete.items()}, digits


def read_speakers(run: Path) -> tuple[int, ...]:
    """Who speaks, in the order of `read_voices`."""
    return tuple(_load(run / "voices" / "reference.npz")["speakers"].tolist())


def _similarities(each: Each, digits: list[Said]) -> dict[str, list[np.ndarray]]:
    vectors = each(lambda strings, said: d_vectors(strings))
    real = vectors.pop("real")
    same, other = bounds(real)
    strings = len(real[0])
    scores = {
        method: [similarity(ours, theirs) for ours, theirs in zip(voices, real, strict=True)]
        for method, voices in vectors.items()
    }
    return {
        "same speaker": list(same.reshape(-1, strings)),
        "other speakers": list(other.reshape(len(real), -1)),
        **scores,
    }


def _naturalness(each: Each, digits: list[Said]) -> dict[str, list[np.ndarray]]:
    return each(lambda strings, said: predicted_mos(strings))


def _accuracies(each: Each, digits: list[Said]) -> dict[str, list[np.ndarray]]:
    if any(digit == NO_DIGIT for strings in digits for string in strings for digit in string):
        raise UserError("Not all that is said are single digits: leave this measure out with --only.")
    return each(lambda strings, said: np.array([digit_accuracy(heard_digits(strings, len(said[0])), said)]))


MEASURES: dict[str, Callable[[Each, list[Said]], dict[str, list[np.ndarray]]]] = {
    "similarity": _similarities,
    "predicted-mos": _naturalness,
    "digit-accuracy": _accuracies,
}


def _summary(by_speaker: list[np.ndarray]) -> dict[str, Any]:
    means = [float(np.mean(scores)) for scores in by_speaker]
    return {
        "mean": finite(float(np.mean(means))),
        "ci95": finite(half_width(means)),
        "values": list(map(finite, means)),
    }


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _by_speaker(arrays: dict[str, np.ndarray]) -> dict[int, Waves]:
    rows = zip(arrays["speakers"].tolist(), arrays["samples"], arrays["lengths"], strict=True)
    return {speaker: _waves(samples, lengths) for speaker, samples, lengths in rows}


def _waves(samples: UInt8[np.ndarray, "strings samples"], lengths: Int[np.ndarray, " strings"]) -> Waves:
    return [decode(string[: int(frames) * HOP]) for string, frames in zip(samples, lengths, strict=True)]
