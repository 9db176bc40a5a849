"""Pitch (Praat, by parselmouth) and phones (pocketsphinx) of every frame of a recording: the extra `speech`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float16, Shaped

from ..runs.errors import UserError
from .recording import UnusableError, Wave
from .speech import HOP, RATE

LOWEST, HIGHEST = 60.0, 500.0
"""Hz; where Praat looks for a voice's pitch."""
NO_PHONE = "SIL"


def need_speech() -> None:
    """Say how to get the packages where they are missing: before any work, not after it."""
    try:
        import parselmouth  # noqa: F401  # pyright: ignore[reportMissingImports]
        import pocketsphinx  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(f"Recordings need {error.name}, which is missing: pip install 'shrinx[speech]'.") from error


def pitch(wave: Wave) -> Float16[np.ndarray, " frames"]:
    """Hz in the middle of each frame, 0 where unvoiced."""
    import parselmouth  # pyright: ignore[reportMissingImports]

    # Praat looks at three periods around a moment, and begins when it has seen them.
    around = round(3 / LOWEST * RATE)
    sound = parselmouth.Sound(np.pad(wave.astype(np.float64), around), sampling_frequency=RATE)
    found = sound.to_pitch_ac(time_step=HOP / RATE, pitch_floor=LOWEST, pitch_ceiling=HIGHEST)
    moments = (around + HOP * (np.arange(len(wave) // HOP) + 0.5)) / RATE
    nearest = np.clip(np.rint((moments - found.xs()[0]) / found.dx).astype(int), 0, len(found.xs()) - 1)
    return found.selected_array["frequency"][nearest].astype(np.float16)


def phones(wave: Wave, words: tuple[str, ...]) -> Shaped[np.ndarray, " frames"]:
    """The name of the phone in each frame, by forced alignment with the words that are said."""
    decoder, aligned = _decoder(), np.full(len(wave) // HOP, NO_PHONE, dtype="<U4")
    unknown = [word for word in words if decoder.lookup_word(word) is None]
    if unknown:
        raise UnusableError(f"says '{unknown[0]}', a word that the recogniser's dictionary lacks")
    sound = np.round(np.clip(wave, -1, 1) * 32767).astype("<i2").tobytes()
    try:
        # Words first, then the phones in them.
        for prepare in (lambda: decoder.set_align_text(" ".join(words)), decoder.set_alignment):
            _hear(decoder, prepare, sound)
        found = [phone for word in decoder.get_alignment() for phone in word]
    except (RuntimeError, TypeError) as error:  # TypeError: there is no alignment to go through.
        raise UnusableError(f"does not sound like '{' '.join(words)}'") from error
    for phone in found:
        if phone.name.isalpha():  # Noises have signs in their names.
            # The recogniser's frames are twice as long.
            aligned[2 * phone.start : 2 * (phone.start + phone.duration)] = phone.name
    return aligned


def _hear(decoder: Any, prepare: Callable[[], None], sound: bytes) -> None:
    prepare()
    decoder.start_utt()
    decoder.process_raw(sound, full_utt=True)
    decoder.end_utt()


@cache
def _decoder() -> Any:
    from pocketsphinx import Config, Decoder  # pyright: ignore[reportMissingImports]

    return Decoder(Config(lm=None, loglevel="FATAL", samprate=RATE))
