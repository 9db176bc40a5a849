"""Mu-law bytes, floating-point waves and wav files."""

import wave
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

from ..runs.files import write_atomically
from .speech import RATE

_MU = 255


def decode(levels: UInt8[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """The wave, between -1 and 1: x = sign(y) (256^|y| - 1) / 255 with y = 2 q / 255 - 1.

    >>> import numpy as np
    >>> decode(np.array([0, 255], np.uint8))
    array([-1.,  1.], dtype=float32)
    """
    compressed = levels.astype(np.float32) / _MU * 2 - 1
    return (np.sign(compressed) * (np.power(1 + _MU, np.abs(compressed), dtype=np.float32) - 1) / _MU).astype(
        np.float32
    )


def encode(waves: Shaped[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """The nearest level of a wave between -1 and 1; what is beyond is clipped.

    >>> import numpy as np
    >>> levels = np.arange(256, dtype=np.uint8)
    >>> bool((encode(decode(levels)) == levels).all())
    True
    """
    clipped = np.clip(waves.astype(np.float64), -1, 1)
    compressed = np.sign(clipped) * np.log1p(_MU * np.abs(clipped)) / np.log1p(_MU)
    return np.round((compressed + 1) / 2 * _MU).astype(np.uint8)


def write_wav(path: Path, levels: UInt8[np.ndarray, " samples"]) -> None:
    """Write mu-law samples as a 16-bit wav file."""

    def write(file) -> None:
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes(np.round(decode(levels) * 32767).astype("<i2").tobytes())

    write_atomically(path, write)
