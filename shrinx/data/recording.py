"""One recording as a file of speech keeps it: one channel, 16 kHz, trimmed, at one level. Or why it cannot be used."""

import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from .speech import HOP, RATE, SHORTEST

LEVEL = 0.086
"""Root mean square that recordings are brought to: that of the median utterance in `audiomnist16k.npz`."""
QUIETEST = 1e-3
"""Root mean square of the loudest frame below which there is nothing to hear: -60 dB."""
SPEECH = 0.03
"""Frames louder than this share of the loud ones are speech: -30 dB."""
MARGIN = 12
"""Frames kept before the first and after the last of them: 60 ms."""
FULL_SCALE = 0.98
MOST_CLIPPED = 0.01
"""Share of samples at full scale from which a recording is clipped."""
UNKNOWN_LENGTH = 0x7FFF0000
"""Bytes of sound from which a header means that it does not know: SoX has 0x7FFFF000 there, others have more."""

Wave = Float32[np.ndarray, " _"]


class UnusableError(Exception):
    """Why a recording cannot be used, as the rest of a sentence: "is silent"."""


def read_recording(path: Path) -> Wave:
    """A whole number of frames between -1 and 1, from a wav file of any width, any rate from 16 kHz, any channels."""
    rate, levels = _read(path)
    if rate < RATE:
        raise UnusableError(
            f"has {rate} samples a second and so nothing above {rate // 2} Hz; record with {RATE} or more"
        )
    if not levels.size:
        raise UnusableError("is silent")
    waves = _as_floats(levels)
    clipped = float(np.mean(np.abs(waves) >= FULL_SCALE))
    if clipped > MOST_CLIPPED:
        raise UnusableError(f"is clipped ({clipped:.1%} of its samples are at full scale); record it less loudly")
    wave = waves.mean(axis=1)
    return tidied(_resampled(wave - wave.mean(), rate))


def tidied(wave: Shaped[np.ndarray, " _"]) -> Wave:
    """Cut to the speech in it, with a little silence around, and brought to one level."""
    frames = wave[: len(wave) // HOP * HOP].reshape(-1, HOP).astype(np.float64)
    loudness = np.sqrt(np.mean(frames**2, axis=1))
    if not loudness.size or loudness.max() < QUIETEST:
        raise UnusableError("is silent")
    speech = np.flatnonzero(loudness > SPEECH * np.quantile(loudness, 0.95))
    if speech[-1] + 1 - speech[0] < SHORTEST:
        seconds = (speech[-1] + 1 - speech[0]) * HOP / RATE
        raise UnusableError(f"holds {seconds:.2f} s of speech; {SHORTEST * HOP / RATE} s is the least")
    kept = frames[max(0, speech[0] - MARGIN) : speech[-1] + 1 + MARGIN].ravel()
    level = min(LEVEL / np.sqrt(np.mean(kept**2)), 0.99 / np.abs(kept).max())
    return (level * kept).astype(np.float32)


def _read(path: Path) -> tuple[int, np.ndarray]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # Of chunks that are not sound, such as titles.
            rate, levels = wavfile.read(path)
    except OSError:
        raise
    except Exception as error:  # Headers that lie raise a dozen different things.
        raise UnusableError(f"is no wav file that can be read ({error})") from error
    if _is_cut_off(path):
        raise UnusableError("is cut off: it is shorter than its header says")
    return rate, levels


def _is_cut_off(path: Path) -> bool:
    """Whether the sound is shorter than its header says, by more than the few bytes that some programs miscount."""
    with open(path, "rb") as file:
        if file.read(12)[:4] != b"RIFF":
            return False
        while len(header := file.read(8)) == 8:
            promised = int.from_bytes(header[4:], "little")
            if header[:4] == b"data":
                # Programs that write into a pipe cannot know the length: they promise about as much as there can be.
                return path.stat().st_size - file.tell() < 0.99 * promised and promised < UNKNOWN_LENGTH
            file.seek(promised + promised % 2, 1)
    return False


def _as_floats(levels: np.ndarray) -> Shaped[np.ndarray, "samples channels"]:
    channels = levels.reshape(len(levels), -1)
    if np.issubdtype(levels.dtype, np.floating):
        waves = channels.astype(np.float64)
        if not np.isfinite(waves).all():
            raise UnusableError("holds values that are no numbers")
        # Floats have no full scale: louder than 1 is only loud.
        return waves / max(1.0, np.abs(waves).max() / FULL_SCALE)
    if levels.dtype == np.uint8:
        return (channels.astype(np.float64) - 128) / 128
    return channels.astype(np.float64) / -float(np.iinfo(levels.dtype).min)


def _resampled(wave: Any, rate: int) -> Any:
    from scipy.signal import resample_poly

    ratio = Fraction(RATE, rate)
    return wave if ratio == 1 else resample_poly(wave, ratio.numerator, ratio.denominator)
