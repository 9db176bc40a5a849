"""From folders of recordings to the arrays of a file of speech, and what was left out on the way and why."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.errors import UserError
from ..runs.files import write_atomically
from .audio import encode
from .phonetics import NO_PHONE, need_speech, phones, pitch
from .progress import Report, silent
from .recording import UnusableError, read_recording
from .speech import HOP, NO_DIGIT, RATE, SpokenDigits, spoken_digits
from .transcripts import SPEAKERS, Utterance, describe_speakers, find_speakers, recordings_in

FEWEST = 2
"""Utterances a speaker must have: one to adapt to and one to be judged by."""


@dataclass(frozen=True)
class Prepared:
    """Speech, and one line for every recording and speaker that was left out."""

    arrays: dict[str, np.ndarray]
    left_out: tuple[str, ...]

    @property
    def digits(self) -> SpokenDigits:
        return spoken_digits(self.arrays)


@dataclass(frozen=True)
class _Heard:
    """What is kept of an utterance."""

    utterance: Utterance
    samples: np.ndarray
    f0: np.ndarray
    phones: np.ndarray


def prepare_speech(folder: Path, out: Path, *, report: Report = silent) -> Prepared:
    """Write the recordings in `folder` (see `transcripts.LAYOUT`) into one file, as `load_speech` reads it."""
    need_speech()
    speakers, about = find_speakers(folder), describe_speakers(folder)
    strangers = sorted(set(about) - set(speakers))
    if strangers:
        raise UserError(f"{folder / SPEAKERS} describes {strangers[0]!r}, for whom there is no folder with recordings.")
    heard, left_out = _hear([one for utterances in speakers.values() for one in utterances], report)
    counts = Counter(one.utterance.speaker for one in heard)
    for speaker in speakers:
        if counts[speaker] < FEWEST:
            left_out.append(f"speaker {speaker} has {counts[speaker]} usable of {FEWEST} needed utterances")
    heard = [one for one in heard if counts[one.utterance.speaker] >= FEWEST]
    prepared = _prepared(heard, left_out, about, folder)
    stored: dict[str, Any] = {**prepared.arrays}
    write_atomically(out, lambda file: np.savez_compressed(file, **stored))
    return prepared


def read_voice(folder: Path, *, report: Report = silent) -> Prepared:
    """The recordings of one speaker, in a folder of their own."""
    need_speech()
    utterances = recordings_in(folder)
    if not utterances:
        raise UserError(f"There are no wav files in {folder}.")
    heard, left_out = _hear(utterances, report)
    return _prepared(heard, left_out, {}, folder)


def _hear(utterances: Sequence[Utterance], report: Report) -> tuple[list[_Heard], list[str]]:
    heard, left_out = [], []
    for done, utterance in enumerate(utterances):
        report(done, len(utterances))
        try:
            heard.append(_hear_one(utterance))
        except UnusableError as reason:
            left_out.append(f"{utterance.path} {reason}")
    report(len(utterances), len(utterances))
    return heard, left_out


def _hear_one(utterance: Utterance) -> _Heard:
    if not utterance.words:
        raise UnusableError(f"has no transcript; write what is said into {utterance.path.with_suffix('.txt').name}")
    wave = read_recording(utterance.path)
    return _Heard(utterance, encode(wave), pitch(wave), phones(wave, utterance.words))


def _prepared(heard: list[_Heard], left_out: list[str], about: dict[str, Any], folder: Path) -> Prepared:
    if not heard:
        raise UserError(f"No recording in {folder} can be used: {'; '.join(left_out[:3])}.")
    numbers = _numbers([one.utterance.speaker for one in heard])
    names = [NO_PHONE, *sorted({str(name) for one in heard for name in one.phones} - {NO_PHONE})]
    index = {name: place for place, name in enumerate(names)}
    digits = [NO_DIGIT if one.utterance.digit is None else one.utterance.digit for one in heard]
    speaker = [numbers[one.utterance.speaker] for one in heard]
    described = {str(number): {"name": name, **about.get(name, {})} for name, number in numbers.items()}
    arrays = {
        "audio": np.concatenate([one.samples for one in heard]),
        "f0": np.concatenate([one.f0 for one in heard]),
        "phone": np.array([index[str(name)] for one in heard for name in one.phones], np.uint8),
        "offsets": np.cumsum([0, *(len(one.f0) for one in heard)]).astype(np.int64),
        "speaker": np.array(speaker, np.int64),
        "digit": np.array(digits, np.uint8),
        "take": np.array(_takes(speaker, digits), np.int64),
        "phones": np.array(names),
        "meta": np.array(json.dumps(described)),
        "sample_rate": np.array(RATE),
        "hop": np.array(HOP),
    }
    return Prepared(arrays, tuple(left_out))


def _numbers(speakers: Sequence[str]) -> dict[str, int]:
    """Numbers of speakers: those their folders are called by if all are, else 1, 2, … in order."""
    names = sorted(set(speakers))
    called = [int(name) for name in names if name.isdecimal()]
    if len(set(called)) < len(names):
        called = list(range(1, len(names) + 1))
    return dict(zip(names, called, strict=True))


def _takes(speakers: Sequence[int], digits: Sequence[int]) -> list[int]:
    """How often the speaker has said the same before."""
    seen: Counter[tuple[int, int]] = Counter()
    takes = []
    for both in zip(speakers, digits, strict=True):
        takes.append(seen[both])
        seen[both] += 1
    return takes
