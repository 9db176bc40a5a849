"""How natural does it sound? The opinion score that Distill-MOS *predicts* of listeners, from 1 (bad) to 5 (excellent).

It rates quality, not content: speech played backwards scores little less.
"""

import importlib.util
import sys
import types
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def predicted_mos(waves: Sequence[Float[np.ndarray, " samples"]]) -> Float[np.ndarray, " strings"]:
    """The predicted mean opinion score of each wave."""
    if importlib.util.find_spec("torchaudio") is None:
        # distillmos reads files with it, which we do not ask for, and it is not everywhere to be had.
        sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    import torch  # pyright: ignore[reportMissingImports]
    from distillmos import ConvTransformerSQAModel  # pyright: ignore[reportMissingImports]

    model = ConvTransformerSQAModel()
    model.eval()
    with torch.no_grad():
        scores = [float(model(torch.from_numpy(wave.astype(np.float32))[None])) for wave in waves]
    return np.asarray(scores)
