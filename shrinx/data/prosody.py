"""How a speaker times and tunes phones: a mean duration and a mean pitch for each, and how pitch falls over a word.

This is little: no stress, no phrase, no word knows the next. It is enough for digits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Shaped

from .speech import SILENCE, SpokenDigits

SMOOTH = 9
"""Frames over which the pitch of one phone goes over into that of the next: 45 ms."""
VOICED = 0.5
"""Share of its frames from which a phone is spoken with pitch."""


class Script(NamedTuple):
    """What to say: pitch in Hz (0 is unvoiced) and phone of every frame."""

    f0: Shaped[np.ndarray, " frames"]
    phones: Shaped[np.ndarray, " frames"]


@dataclass(frozen=True, eq=False)
class Prosody:
    """For every phone, NaN where it was never heard. Of silence only the duration counts."""

    duration: Float32[np.ndarray, " phones"]
    """In frames; that of silence is before and after every word."""
    pitch: Float32[np.ndarray, " phones"]
    """Mean of log Hz over voiced frames."""
    voiced: Float32[np.ndarray, " phones"]
    """Share of frames that are."""
    middle: Float32[np.ndarray, ""]
    """Mean of log Hz over everything."""
    fall: Float32[np.ndarray, ""]
    """How much log Hz changes from the beginning of a word to its end."""

    def as_arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def as_lists(self) -> dict[str, Any]:
        """For JSON, where what was never heard is null."""
        lists = {name: array.tolist() for name, array in self.as_arrays().items()}
        return {name: _without_nan(value) for name, value in lists.items()}

    @staticmethod
    def of(values: dict[str, Any]) -> "Prosody":
        """From arrays or lists, as the two methods above make them."""
        return Prosody(**{field.name: np.array(values[field.name], np.float32) for field in fields(Prosody)})

    def filled(self, usual: "Prosody") -> "Prosody":
        """Phones that were never heard as others say them, at this speaker's pace and pitch."""
        pace = np.nanmean(self.duration / usual.duration)
        height = np.nan_to_num(self.middle - usual.middle)
        return Prosody(
            duration=_filled(self.duration, usual.duration * pace),
            pitch=_filled(self.pitch, usual.pitch + height),
            voiced=_filled(self.voiced, usual.voiced),
            middle=_filled(self.middle, usual.middle),
            fall=_filled(self.fall, usual.fall),
        )

    def script(self, words: Sequence[Sequence[int]]) -> Script:
        """Words, given by their phones, one after another."""
        pieces = [self._word(phones) for phones in words]
        phones = np.concatenate([phones for phones, _ in pieces])
        place = np.concatenate([place for _, place in pieces])
        return Script(self._tune(phones, place), phones.astype(np.uint8))

    def _word(self, phones: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The phone of each frame, and how far into the word it is, from -1/2 to 1/2."""
        frames = np.maximum(1, np.rint(self.duration[list(phones)])).astype(int)
        spoken = np.repeat(phones, frames)
        around = np.full(max(1, round(float(self.duration[SILENCE]))), SILENCE)
        place = np.linspace(-0.5, 0.5, len(spoken))
        return np.concatenate([around, spoken, around]), np.pad(place, len(around), mode="edge")

    def _tune(self, phones: np.ndarray, place: np.ndarray) -> Shaped[np.ndarray, " frames"]:
        sounding = (self.voiced[phones] >= VOICED) & (phones != SILENCE) & np.isfinite(self.pitch[phones])
        if not sounding.any():
            return np.zeros(len(phones), np.float16)
        every = np.arange(len(phones))
        height = np.interp(every, every[sounding], self.pitch[phones][sounding])
        window = np.ones(SMOOTH) / SMOOTH
        smooth = np.convolve(np.pad(height, SMOOTH // 2, mode="edge"), window, mode="valid")
        return np.where(sounding, np.exp(smooth + self.fall * place), 0).astype(np.float16)


def prosody_of(digits: SpokenDigits, speaker: int) -> Prosody:
    """Of one speaker, from all utterances."""
    runs, frames, voiced, sums = np.zeros((4, len(digits.phones)))
    log_f0, place, which = [], [], []
    for phone, f0 in _utterances(digits, speaker):
        np.add.at(runs, phone[np.flatnonzero(np.diff(phone, prepend=-1))], 1)
        np.add.at(frames, phone, 1)
        spoken = phone != SILENCE
        sounding = spoken & (f0 > 0)
        which.append(phone[sounding])
        log_f0.append(np.log(f0[sounding]))
        place.append(np.linspace(-0.5, 0.5, spoken.sum())[sounding[spoken]])
    which, log_f0, place = (np.concatenate(parts) for parts in (which, log_f0, place))
    np.add.at(voiced, which, 1)
    np.add.at(sums, which, log_f0)
    with np.errstate(invalid="ignore", divide="ignore"):  # What was never heard becomes NaN.
        pitch = sums / voiced
        return Prosody.of(
            {
                "duration": frames / runs,
                "pitch": pitch,
                "voiced": voiced / frames,
                "middle": np.sum(log_f0) / np.float64(len(log_f0)),
                "fall": np.sum((log_f0 - pitch[which]) * place) / np.sum(place**2),
            }
        )


def mean_prosody(speakers: Sequence[Prosody]) -> Prosody:
    """Of several speakers, over those who have said a phone."""
    arrays = [speaker.as_arrays() for speaker in speakers]
    return Prosody.of({name: _mean([each[name] for each in arrays]) for name in arrays[0]})


def _utterances(digits: SpokenDigits, speaker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for index in np.flatnonzero(digits.speaker == speaker):
        here = slice(digits.offsets[index], digits.offsets[index + 1])
        yield digits.phone[here].astype(int), digits.f0[here].astype(np.float64)


def _mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(arrays)
    known = np.isfinite(stacked)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, stacked, 0).sum(axis=0) / known.sum(axis=0))


def _filled(own: np.ndarray, others: Any) -> np.ndarray:
    return np.asarray(np.where(np.isfinite(own), own, others), np.float32)


def _without_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value if np.isfinite(value) else None
