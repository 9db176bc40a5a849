"""How natural does it sound? The opinion score that Distill-MOS *predicts* of listeners, from 1 (bad) to 5 (excellent).

It rates quality, not content: speech played backwards scores little less.
"""

import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float


def predicted_mos(waves: Sequence[Float[np.ndarray, " _"]]) -> Float[np.ndarray, " strings"]:
    """The predicted mean opinion score of each wave."""
    import torch  # pyright: ignore[reportMissingImports]

    model = _model()
    with torch.no_grad():
        scores = [float(model(torch.from_numpy(wave.astype(np.float32))[None])) for wave in waves]
    return np.asarray(scores)


@cache
def _model() -> Any:
    # It prints where its weights are.
    with _no_torchaudio(), redirect_stdout(None):
        from distillmos import ConvTransformerSQAModel  # pyright: ignore[reportMissingImports]

        model = ConvTransformerSQAModel()
    model.eval()
    return model


@contextmanager
def _no_torchaudio() -> Iterator[None]:
    """distillmos imports torchaudio to read files, which we do not ask for, and many builds of it fit no torch."""
    before = sys.modules.get("torchaudio")
    sys.modules["torchaudio"] = before or types.ModuleType("torchaudio")
    try:
        yield
    finally:
        if before is None:
            del sys.modules["torchaudio"]
