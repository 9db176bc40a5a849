"""Let a voice of a bank speak."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from ..bank.bank import Bank
from ..bank.errors import BankError
from ..data.phonetics import need_speech, phones, pitch
from ..data.prosody import Prosody, Script
from ..data.recording import UnusableError, read_recording
from ..data.speech import HOP, SILENCE
from ..data.transcripts import WORDS
from ..models.wavenet_speak import speak
from .model import VoiceModel

PRONUNCIATIONS = (
    "Z IY R OW",
    "W AH N",
    "T UW",
    "TH R IY",
    "F AO R",
    "F AY V",
    "S IH K S",
    "S EH V AH N",
    "EY T",
    "N AY N",
)
"""Phones of the ten digits."""
PADDED = 100
"""Frames to whose multiples scripts are filled up with silence, so that few lengths are compiled."""


def script_of_digits(bank: Bank, name: str, digits: str) -> Script:
    """Digits as the voice itself would time and tune them."""
    model = VoiceModel.of(bank)
    words = [model.indices(PRONUNCIATIONS[digit].split()).tolist() for digit in _digits(digits)]
    return prosody_in(bank, name).script(words)


def script_of_recording(bank: Bank, name: str, digits: str, recording: Path) -> Script:
    """Digits as somebody else says them in a wav file, moved to the voice's own pitch; needs the extra `speech`."""
    need_speech()
    model, own = VoiceModel.of(bank), prosody_in(bank, name)
    try:
        wave = read_recording(recording)
        f0 = pitch(wave).astype(np.float64)
        heard = phones(wave, tuple(WORDS[digit] for digit in _digits(digits)))
    except UnusableError as reason:
        raise BankError(f"{recording} {reason}.") from reason
    voiced = f0 > 0
    if voiced.any():
        f0[voiced] *= np.exp(own.middle - np.mean(np.log(f0[voiced])))
    return Script(f0.astype(np.float16), model.indices(heard))


def say(
    bank: Bank, name: str, script: Script, *, temperature: float = 1.0, seed: int = 0
) -> UInt8[np.ndarray, " samples"]:
    """Mu-law samples at 16 kHz, for `shrinx.data.audio.write_wav`.

    **Arguments:** `bank`, made from a speech run; `name` of a voice in it; `script`, from one of the functions above;
    `temperature`, 1 draws from the model, less is less noisy; `seed`, another one says it a little differently.
    """
    network, frames = VoiceModel.of(bank).network, len(script.f0)
    after = (0, -frames % PADDED)
    f0 = jnp.asarray(np.pad(script.f0, after))[None]
    told = jnp.asarray(np.pad(script.phones, after, constant_values=SILENCE))[None]
    samples = speak(network, bank.params(name), f0, told, jax.random.key(seed), temperature=temperature)
    return np.asarray(samples)[0, : frames * HOP]


def prosody_in(bank: Bank, name: str) -> Prosody:
    """What enrolment has kept of how the speaker speaks."""
    about = bank.about(name)
    if not about:
        raise BankError(f"The bank does not know how {name!r} speaks: enrol the voice with `shrinx adapt`.")
    return Prosody.of(about)


def _digits(text: str) -> list[int]:
    if not text or not all(letter in "0123456789" for letter in text):
        raise BankError(f"Voices say digits, such as 31415, not {text!r}.")
    return [int(letter) for letter in text]
