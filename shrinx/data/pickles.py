"""Reading pickles of arrays without running what is in them.

A pickle is a program: `pickle.load` calls whatever it names. Here it may name the few functions that rebuild arrays,
and nothing else.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.errors import UserError


def load_arrays(path: Path) -> Any:
    """The dicts, lists, strings, numbers and numpy arrays in a pickle; anything else in it is an error."""
    try:
        with open(path, "rb") as file:
            # Python 2 wrote text and the bytes of arrays as one type; latin1 reads both.
            return _ArraysOnly(file, encoding="latin1").load()
    except OSError:
        raise
    except Exception as error:  # A broken pickle can raise anything.
        raise UserError(f"{path} is not a pickle of arrays alone ({error}); get it from another place.") from error


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _ADMITTED.get((module.replace("numpy._core.", "numpy.core."), name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known


def _from_buffer(buffer: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


_ADMITTED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # numpy's own functions, which live in a private module whose name has changed.
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy.core.multiarray", "scalar"): np.int64(0).__reduce__()[0],
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    # How protocol 2 of Python 3 writes bytes. `str.encode` knows text encodings alone, `codecs.encode` runs any codec.
    ("_codecs", "encode"): str.encode,
}
