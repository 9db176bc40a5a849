"""What the voices of a speech run say, and how they were judged: read from its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..measures.judge import FILE, read_speakers, read_voices
from ..runs.errors import UserError
from ..runs.folder import read_json
from .numbers import clean, known, number
from .schema import SCORE, Named, mismatch

REAL = "real"
MEASURES = {"similarity": "Similarity", "predicted-mos": "Predicted MOS", "digit-accuracy": "Digits understood"}
Waves = list[list[np.ndarray]]
"""Strings of every speaker."""
Measures = dict[str, dict[str, dict[str, Any]]]
"""Scores by measure and method."""


@dataclass(frozen=True, eq=False)
class Voices:
    """Of one run. A method is what its files are called by: which modules adapt, and to how many utterances."""

    speakers: tuple[int, ...]
    digits: list[list[tuple[int, ...]]]
    waves: dict[str, Waves]

    @property
    def methods(self) -> tuple[str, ...]:
        """All but the real speakers."""
        return tuple(method for method in self.waves if method != REAL)

    def find(self, speaker: int, digits: tuple[int, ...]) -> tuple[int, int] | None:
        """Where the speaker says these digits: other runs may have other test speakers, and other strings."""
        if speaker not in self.speakers:
            return None
        row = self.speakers.index(speaker)
        return (row, self.digits[row].index(digits)) if digits in self.digits[row] else None


def load_measures(path: Path) -> Measures:
    """How the voices of the run in this folder were judged, which outlives their sound; empty if they were not."""
    measures = read_json(path / FILE) if (path / FILE).exists() else {}
    problem = mismatch(measures, Named(Named(SCORE)))
    if problem is not None:
        raise UserError(f"{path / FILE} is not what shrinx.measures writes ({clean(problem)}); judge the run again.")
    return measures


def scores_of(measures: Measures, method: str, row: int) -> dict[str, float]:
    """What each measure says of a speaker's strings."""
    scores = {measure: (measures.get(measure) or {}).get(method) or {} for measure in MEASURES}
    values = {measure: score.get("values") or [] for measure, score in scores.items()}
    return {measure: number(found[row]) for measure, found in values.items() if len(known(found)) > row}


def load_voices(path: Path) -> Voices | None:
    """The voices in a run's folder; `None` if there are none."""
    if not (path / "voices" / "reference.npz").exists():
        return None
    try:
        waves, digits = read_voices(path)
        return Voices(read_speakers(path), digits, waves)
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken file.
        raise UserError(
            f"{path / 'voices'} holds a file that cannot be read ({clean(error)}); make it anew."
        ) from error


def method_title(method: str) -> str:
    """
    >>> method_title("selected-80")
    'selected modules, 80 utterances'
    """
    modules, _, count = method.rpartition("-")
    return f"{modules} modules, {count} utterances"


def num_utterances(method: str) -> int:
    count = method.rpartition("-")[2]
    return int(count) if count.isdecimal() else 0
