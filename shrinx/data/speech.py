"""Spoken digits: 100 utterances of each of 50 speakers (AudioMNIST), 16 kHz, 8-bit mu-law, with pitch and phones."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float16, Int, Shaped, UInt8

from ..runs.errors import UserError
from .location import VARIABLE, data_folder

FILE = "audiomnist16k.npz"
HOP = 80
"""Samples in a frame of 5 ms."""
RATE = 16_000
SHORTEST = 20
"""Frames an utterance must have: 0.1 s."""
SILENCE = 0
"""The phone that is none."""
NO_DIGIT = 255
"""The digit of an utterance that is none: other words, or several."""


@dataclass(frozen=True)
class SpokenDigits:
    """All utterances, end to end; utterance i is frames `offsets[i]` to `offsets[i + 1]`.

    **Attributes:**

    - `samples`: mu-law, frame by frame.
    - `f0`: pitch of each frame in Hz, 0 where unvoiced.
    - `phone`: index into `phones`, whose first is silence.
    - `speaker`, `digit`, `take`: of each utterance; the digit may be `NO_DIGIT`.
    - `gender`, `name`: of each speaker; empty if unknown.
    """

    samples: UInt8[np.ndarray, "frames 80"]
    f0: Float16[np.ndarray, " frames"]
    phone: UInt8[np.ndarray, " frames"]
    offsets: Int[np.ndarray, " ends"]
    speaker: Int[np.ndarray, " utterances"]
    digit: Int[np.ndarray, " utterances"]
    take: Int[np.ndarray, " utterances"]
    phones: tuple[str, ...]
    gender: dict[int, str]
    name: dict[int, str]

    @property
    def speakers(self) -> tuple[int, ...]:
        """Numbers of the speakers, in order. Everything else calls a speaker by the position in this list."""
        return tuple(np.unique(self.speaker).tolist())


@dataclass(frozen=True)
class SpeakerSplit:
    """Positions in `SpokenDigits.speakers`."""

    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]


def load_speech(data_dir: str | Path | None = None) -> SpokenDigits:
    """Read `audiomnist16k.npz` from `data_dir`, or from where data lives by default (see `data_folder`).

    **Arguments:**

    - `data_dir`: a folder, or a file as `shrinx data prepare-speech` writes it; `$SHRINX_DATA` or the user's cache
      directory if not given.

    **Returns:**

    The utterances. A missing or foreign file is a `UserError` that says what to do.
    """
    path = data_folder(data_dir)
    path = path if path.suffix == ".npz" else path / FILE
    if not path.is_file():
        otherwise = f"set {VARIABLE}" if data_dir is None else "name another with --data-dir"
        raise UserError(f"There is no {path}; make it with `{command_for(path)}`, or {otherwise}.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return spoken_digits(arrays)
    except Exception as error:  # zipfile, zlib, json and numpy raise a dozen different things for a foreign file.
        raise UserError(f"{path} is damaged or no spoken digits ({error}); get it anew.") from error


def command_for(path: Path) -> str:
    """What makes the file, from a copy of AudioMNIST."""
    return f"shrinx data prepare-speech AudioMNIST/data {shlex.quote(str(path))}"


def speaker_split(
    digits: SpokenDigits, *, seed: int, num_validation: int = 4, num_test: int = 10, num_train: int | None = None
) -> SpeakerSplit:
    """Test, validation and training speakers, each with its share of women and men; training takes all that are left.

    With the same seed, fewer training speakers are a part of more, and validation and test stay the same.

    **Arguments:** `digits`; `seed`, of the experiment; the numbers of speakers.
    """
    speakers = digits.speakers
    left = len(speakers) - num_validation - num_test
    wanted = left if num_train is None else num_train
    if min(num_validation, num_test, wanted) < 1 or wanted > left:
        raise UserError(
            f"{len(speakers)} speakers cannot be split into {wanted} for training, {num_validation} for validation and "
            f"{num_test} for test."
        )
    random = np.random.RandomState(seed)  # Its stream is frozen for good: a seed means the same split for everybody.
    genders = np.array([digits.gender.get(speaker, "") for speaker in speakers])
    # Everybody's rank among their own gender, from 0 to 1: in that order the genders are evenly mixed.
    rank = np.empty(len(speakers))
    for gender in np.unique(genders):
        members = np.flatnonzero(genders == gender)
        rank[random.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    order = np.argsort(rank, kind="stable")
    test, validation, train = np.split(order, [num_test, num_test + num_validation])
    return SpeakerSplit(train=random.permutation(train)[:wanted], validation=validation, test=test)


def spoken_digits(arrays: dict[str, np.ndarray]) -> SpokenDigits:
    """The arrays of a file, checked: a `ValueError` says what is wrong with them."""
    frames, count = len(arrays["f0"]), len(arrays["speaker"])
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "audio": (np.uint8, (HOP * frames,)),
        "f0": (np.float16, (frames,)),
        "phone": (np.uint8, (frames,)),
        "offsets": (np.integer, (count + 1,)),
        "speaker": (np.integer, (count,)),
        "digit": (np.integer, (count,)),
        "take": (np.integer, (count,)),
        "phones": (np.str_, arrays["phones"].shape[:1]),
    }
    for name, (kind, shape) in expected.items():
        if not np.issubdtype(arrays[name].dtype, kind) or arrays[name].shape != shape:
            raise ValueError(f"`{name}` is {arrays[name].dtype}{list(arrays[name].shape)}")
    lengths = np.diff(arrays["offsets"].astype(np.int64))
    if count == 0 or arrays["offsets"][0] != 0 or arrays["offsets"][-1] != frames or lengths.min() < SHORTEST:
        raise ValueError(f"`offsets` do not cut the audio into utterances of at least {SHORTEST} frames")
    if arrays["phone"].max() >= len(arrays["phones"]):
        raise ValueError("`phone` has values that `phones` does not name")
    described = json.loads(str(arrays["meta"])) if "meta" in arrays else {}
    return SpokenDigits(
        samples=arrays["audio"].reshape(frames, HOP),
        f0=arrays["f0"],
        phone=arrays["phone"],
        offsets=arrays["offsets"].astype(np.int64),
        **{name: _integers(arrays[name]) for name in ("speaker", "digit", "take")},
        phones=tuple(arrays["phones"].tolist()),
        gender={int(speaker): str(about.get("gender", "")).lower() for speaker, about in described.items()},
        name={int(speaker): str(about.get("name", "")) for speaker, about in described.items()},
    )


def _integers(array: Shaped[np.ndarray, " utterances"]) -> Int[np.ndarray, " utterances"]:
    return array.astype(np.int64)
