"""Is it the same voice? The cosine between GE2E d-vectors (Wan et al. 2018), as in appendix E.2, by Resemblyzer."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float

from ..data.speech import RATE

SHORTEST = 3.0
"""Seconds a string should last: on a single digit these vectors mistake one speaker for another one time in five."""

Wave = Float[np.ndarray, " _"]
Vectors = Float[np.ndarray, "_ 256"]


def d_vectors(waves: Sequence[Wave]) -> Vectors:
    """One vector of length 1 for each wave."""
    from resemblyzer import preprocess_wav  # pyright: ignore[reportMissingImports]

    clean = [preprocess_wav(wave.astype(np.float32), source_sr=RATE) for wave in waves]
    return np.stack([_encoder().embed_utterance(wave) for wave in clean])


@cache
def _encoder() -> Any:
    from resemblyzer import VoiceEncoder  # pyright: ignore[reportMissingImports]

    return VoiceEncoder("cpu", verbose=False)


def similarity(spoken: Vectors, real: Vectors) -> Float[np.ndarray, " strings"]:
    """Cosine of each spoken string with the mean of the speaker's real ones.

    >>> import numpy as np
    >>> north, east = np.eye(256)[:1], np.eye(256)[1:2]
    >>> similarity(np.concatenate([north, east]), north)
    array([1., 0.])
    """
    centre = real.mean(axis=0)
    return spoken @ centre / (np.linalg.norm(spoken, axis=1) * np.linalg.norm(centre))


def bounds(real: Sequence[Vectors]) -> tuple[Float[np.ndarray, " ceiling"], Float[np.ndarray, " floor"]]:
    """What real speech scores: against the same speaker's other strings (the ceiling), and against everybody else's.

    **Arguments:** `real`, the d-vectors of each speaker's strings, at least two strings and two speakers.
    """
    if len(real) < 2 or min(map(len, real)) < 2:
        raise ValueError("Bounds of similarity need at least two speakers with two strings each.")
    same = [similarity(own[[row]], np.delete(own, row, axis=0)) for own in real for row in range(len(own))]
    other = [similarity(own, theirs) for own in real for theirs in real if theirs is not own]
    return np.concatenate(same), np.concatenate(other)
