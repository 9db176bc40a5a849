"""What a run has learned, in one file that another run can start from."""

from pathlib import Path

from .._prior import Prior
from . import checkpoint
from .errors import UserError

FOLDER = "model"


def save_prior(run: Path, step: int, prior: Prior) -> None:
    """Write the prior as it is after `step` into the run's folder, in place of an earlier one."""
    checkpoint.save(run / FOLDER, step, prior, keep=1)


def load_prior(run: str | Path, like: Prior) -> Prior:
    """The prior that a run has left, finished or not; its network must be that of `like`."""
    folder = Path(run).expanduser() / FOLDER
    restored = checkpoint.restore(folder, like)
    if restored is None:
        raise UserError(f"There is no model in {folder}; name the folder of a run that has begun to train.")
    return restored[1]
