"""From recordings of a speaker to a voice in a bank."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from .._solver import AbstractSolver
from ..bank.adapting import TaskReport, adapt_task
from ..bank.bank import Bank
from ..bank.errors import BankError
from ..data.prosody import prosody_of
from ..data.speech import SpokenDigits
from ..tasks.speech import recordings_of
from .model import VoiceModel


def enrol(
    bank: Bank,
    name: str,
    digits: SpokenDigits,
    *,
    solver: AbstractSolver | None = None,
    max_steps: int | None = None,
    tolerance: float = 1e-4,
    seed: int = 0,
    report: Callable[[int, int], object] | None = None,
) -> TaskReport:
    """Adapt the task-specific modules to a speaker, and keep the voice and its prosody in the bank.

    Enrol nobody who has not agreed to it.

    **Arguments:**

    - `bank`: made from a speech run.
    - `name`: the voice's.
    - `digits`: the recordings of one speaker, see `only`, as `load_speech` or `read_voice` gives them.
    - `solver`, `max_steps`: the run's solver, and as many steps as it gave its test speakers, by default.
    - `tolerance`, `report`: as in [`adapt_task`][shrinx.adapt_task].

    **Returns:** how it went.
    """
    model = VoiceModel.of(bank)
    if len(digits.speakers) != 1:
        raise BankError(f"The recordings are of {len(digits.speakers)} speakers; choose one of them.")
    digits = replace(digits, phone=model.indices(digits.phones)[digits.phone], phones=model.phones)
    recordings = recordings_of(digits)
    return adapt_task(
        bank,
        model.network.negative_log_likelihood,
        [name],
        recordings,
        solver or model.solver,
        max_steps=model.num_steps if max_steps is None else max_steps,
        tolerance=tolerance,
        key=jax.random.key(seed),
        sample=model.sample,
        variance_factor=model.config.variance_factor(recordings.starts.shape[-1]),
        about={name: prosody_of(digits, digits.speakers[0]).filled(model.usual).as_arrays()},
        report=report,
    )


def only(digits: SpokenDigits, speaker: str, path: Path) -> SpokenDigits:
    """One of the speakers of the file `path`, by number or name."""
    known = {digits.name.get(number) or str(number): number for number in digits.speakers}
    chosen = known.get(speaker, int(speaker) if speaker.isdecimal() else None)
    if chosen not in digits.speakers:
        raise BankError(f"There is no speaker {speaker!r} in {path}; known: {', '.join(known)}.")
    utterances = np.flatnonzero(digits.speaker == chosen)
    spans = [np.arange(digits.offsets[index], digits.offsets[index + 1]) for index in utterances]
    frames = np.concatenate(spans)
    return replace(
        digits,
        samples=digits.samples[frames],
        f0=digits.f0[frames],
        phone=digits.phone[frames],
        offsets=np.cumsum([0, *map(len, spans)]),
        **{part: getattr(digits, part)[utterances] for part in ("speaker", "digit", "take")},
    )
