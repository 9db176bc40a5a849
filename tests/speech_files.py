"""A small file of speech like the real one: every speaker is a tone of a pitch of their own."""

import json
from pathlib import Path

import numpy as np

from shrinx.data.audio import encode

HOP, RATE = 80, 16_000


def pitch_of(speaker: int) -> float:
    """In Hz. Nothing but the sound tells it: all frames are called unvoiced."""
    return 1500.0 + 300.0 * speaker


def tone(speaker: int, num_frames: int, seed: int) -> np.ndarray:
    random = np.random.RandomState(seed)
    time = np.arange(num_frames * HOP) / RATE
    wave = 0.3 * np.sin(2 * np.pi * (pitch_of(speaker) * time + random.rand()))
    return encode(wave + 0.003 * random.randn(len(time)))


def speech_arrays(num_speakers: int = 6, takes: int = 5, num_digits: int = 2) -> dict[str, np.ndarray]:
    """Speakers 1, 3, 5, …; utterances of 20 to 29 frames."""
    numbers = [1 + 2 * row for row in range(num_speakers)]
    whose = [(row, digit, take) for row in range(num_speakers) for digit in range(num_digits) for take in range(takes)]
    lengths = [20 + (7 * row + 3 * digit + take) % 10 for row, digit, take in whose]
    audio = [tone(row, length, seed) for seed, ((row, _, _), length) in enumerate(zip(whose, lengths, strict=True))]
    phones = [np.full(length, 1 + digit) for (_, digit, _), length in zip(whose, lengths, strict=True)]
    about = {f"{number:02d}": {"gender": "female" if row % 3 == 0 else "Male"} for row, number in enumerate(numbers)}
    return {
        "audio": np.concatenate(audio),
        "f0": np.zeros(sum(lengths), np.float16),
        "phone": np.concatenate(phones).astype(np.uint8),
        "offsets": np.cumsum([0, *lengths]).astype(np.int64),
        "speaker": np.array([numbers[row] for row, _, _ in whose], np.uint8),
        "digit": np.array([digit for _, digit, _ in whose], np.uint8),
        "take": np.array([take for _, _, take in whose], np.uint8),
        "phones": np.array(["SIL", *(f"P{digit}" for digit in range(num_digits))]),
        "meta": np.array(json.dumps(about)),
    }


def speech_folder(folder: Path, **changed: np.ndarray) -> Path:
    np.savez(folder / "audiomnist16k.npz", **{**speech_arrays(), **changed})
    return folder
