"""`shrinx say`, and `shrinx adapt` for a bank of voices."""

import argparse
import sys
import time
from pathlib import Path

from ._averaging import with_rate
from .bank.bank import Bank
from .bank.errors import BankError
from .data.audio import write_wav
from .data.progress import bar
from .data.speech import HOP, RATE, SpokenDigits, load_speech
from .data.speech_source import read_voice
from .runs.errors import UserError

LITTLE = 10.0
"""Seconds of speech below which a voice will not be much like its speaker."""


def add_say(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bank", type=Path, required=True, metavar="DIR", help="a bank made from a speech run")
    parser.add_argument("--voice", required=True, metavar="NAME", help="who speaks, as `shrinx bank list DIR` shows")
    parser.add_argument("--digits", required=True, metavar="D", help="what to say")
    parser.add_argument("out", type=Path, metavar="FILE", help="the wav file to write")
    parser.add_argument("--reference", type=Path, metavar="WAV", help="say it as in this recording (extra `speech`)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="less is less noisy")
    parser.add_argument("--seed", type=int, default=0, help="another one says it a little differently")
    parser.add_argument("--replace", action="store_true", help="write the file anew if it is there already")


def say_digits(parsed: argparse.Namespace) -> None:
    from .voices.speaking import say, script_of_digits, script_of_recording

    if parsed.out.suffix.lower() != ".wav":
        raise UserError(f"{parsed.out} must end in .wav, which is what is written.")
    if parsed.out.exists() and not parsed.replace:
        raise UserError(f"{parsed.out} is there already; name another file, or add --replace.")
    bank, started = Bank.open(parsed.bank), time.monotonic()
    if parsed.reference is None:
        script = script_of_digits(bank, parsed.voice, parsed.digits)
    else:
        script = script_of_recording(bank, parsed.voice, parsed.digits, parsed.reference)
    samples = say(bank, parsed.voice, script, temperature=parsed.temperature, seed=parsed.seed)
    write_wav(parsed.out, samples)
    print(f"{parsed.out}: {len(samples) / RATE:.1f} s of speech in {time.monotonic() - started:.0f} s.")


def enrol_voices(bank: Bank, parsed: argparse.Namespace) -> None:
    """`shrinx adapt` where tasks are speakers: `--data` is a folder of wav files or a file of speech."""
    from .voices.enrolment import enrol
    from .voices.model import VoiceModel

    solver = VoiceModel.of(bank).solver
    if parsed.learning_rate is not None:
        solver = with_rate(solver, parsed.learning_rate)
    for name, digits in zip(parsed.task, _recordings(parsed), strict=True):
        count, seconds = len(digits.speaker), len(digits.f0) * HOP / RATE
        print(f"{name}: {count} utterance{'s' * (count != 1)}, {seconds:.0f} s.", file=sys.stderr)
        if seconds < LITTLE:
            print(f"{name}: that is little; a voice needs some {LITTLE:.0f} s, better a minute.", file=sys.stderr)
        options = {"solver": solver, "max_steps": parsed.max_steps, "tolerance": parsed.tolerance}
        with bar(f"{name}: steps", before="compiling") as watch:
            report = enrol(bank, name, digits, report=watch, **options)
        print(f"{name}: loss {report.loss[0]:.4g} after {report.num_steps[0]:,} steps; try `shrinx say`.")


def _recordings(parsed: argparse.Namespace) -> list[SpokenDigits]:
    from .voices.enrolment import only

    path, wanted = parsed.data, parsed.speaker or []
    if path.is_dir():
        if wanted or len(parsed.task) != 1:
            raise UserError(f"{path} is a folder, which holds one speaker: name one task and no --speaker.")
        with bar("recordings") as report:
            prepared = read_voice(path, report=report)
        for line in prepared.left_out:
            print(f"Left out: {line}.", file=sys.stderr)
        return [prepared.digits]
    if not path.exists():
        raise BankError(f"{path} does not exist; name a folder of wav files or a file of speech.")
    if path.suffix != ".npz":
        raise BankError(f"{path} is neither a folder of wav files nor a file of speech (.npz).")
    digits = load_speech(path)
    if not wanted and len(digits.speakers) == len(parsed.task) == 1:
        return [digits]
    if len(wanted) != len(parsed.task):
        raise UserError(
            f"{path} holds {len(digits.speakers)} speakers: name one for every task, in order, with --speaker."
        )
    return [only(digits, speaker, path) for speaker in wanted]
