"""What a bank of voices knows besides its parameters: the network, its phones, and how people usually speak."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Shaped

from .._solver import AbstractSolver
from .._types import SampleFn
from ..bank.bank import Bank
from ..bank.errors import BankError
from ..bank.from_run import config_of_model
from ..data.prosody import Prosody
from ..experiments.algorithms import make_solver
from ..experiments.speech_network import network_of
from ..models.wavenet import WaveNet
from ..tasks.speech import draw_strings


@dataclass(frozen=True)
class VoiceModel:
    """Read from a bank that was made from a speech run."""

    config: Any
    phones: tuple[str, ...]
    usual: Prosody
    """The mean of the speakers the network was trained on."""
    num_steps: int
    """Steps of adaptation that the run gave its test speakers."""

    @staticmethod
    def of(bank: Bank) -> "VoiceModel":
        if not is_of_voices(bank):
            raise BankError(f"The bank in {bank.path} holds no voices; make one from a run of the experiment speech.")
        model = bank.model or {}
        voices = model["voices"]
        return VoiceModel(
            config_of_model(model), tuple(voices["phones"]), Prosody.of(voices["prosody"]), voices["steps"] or 10_000
        )

    @cached_property
    def network(self) -> WaveNet:
        network = network_of(self.config, num_phones=len(self.phones), num_train=1)
        # A CPU has no bfloat16 of its own and gets it in detours.
        return replace(network, dtype="float32") if jax.default_backend() == "cpu" else network

    @property
    def solver(self) -> AbstractSolver:
        return make_solver(self.config)

    @property
    def sample(self) -> SampleFn:
        return eqx.Partial(draw_strings, num_strings=self.config.num_strings, num_frames=self.config.num_frames)

    def indices(self, phones: Sequence[str] | Shaped[np.ndarray, " frames"]) -> Shaped[np.ndarray, " frames"]:
        """Where the network has these phones."""
        places = {name: place for place, name in enumerate(self.phones)}
        unknown = sorted({str(name) for name in phones} - set(places))
        if unknown:
            raise BankError(
                f"The network was never told the phone {unknown[0]!r}; it knows {', '.join(self.phones[1:])}."
            )
        return np.array([places[str(name)] for name in phones], np.uint8)


def is_of_voices(bank: Bank) -> bool:
    return bank.model is not None and "voices" in bank.model
