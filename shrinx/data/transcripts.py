"""Who says what in a folder of recordings."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.errors import UserError

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LAYOUT = """\
  FOLDER/speaker/name.wav           a folder per speaker
  FOLDER/speaker/transcripts.csv    columns file and text: what is said in each; or instead
  FOLDER/speaker/name.txt           what is said in name.wav; or instead
  FOLDER/speaker/7_speaker_3.wav    the digit that is said, first in the name, as AudioMNIST has it
  FOLDER/speakers.json              if there: {"speaker": {"gender": "female"}}, by which splits are balanced"""
LIST = "transcripts.csv"
SPEAKERS = "speakers.json"


@dataclass(frozen=True)
class Utterance:
    """A recording and the words in it, lower case; no words where nothing says which."""

    path: Path
    speaker: str
    words: tuple[str, ...]

    @property
    def digit(self) -> int | None:
        """The digit that it is, if it is one."""
        return WORDS.index(self.words[0]) if len(self.words) == 1 and self.words[0] in WORDS else None


def find_speakers(folder: Path) -> dict[str, list[Utterance]]:
    """The recordings of every speaker in a folder of folders."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name one with a folder of wav files for every speaker.")
    speakers = {path.name: recordings_in(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    found = {name: utterances for name, utterances in speakers.items() if utterances}
    if not found:
        raise UserError(f"There are no wav files in the folders of {folder}; expected {folder}/SPEAKER/NAME.wav.")
    return found


def recordings_in(folder: Path) -> list[Utterance]:
    """The recordings of one speaker, by name."""
    listed = _listed(folder / LIST)
    waves = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".wav" and path.is_file())
    missing = sorted(set(listed) - {path.name for path in waves})
    if missing:
        raise UserError(f"{folder / LIST} names {missing[0]}, which is not in {folder}.")
    return [Utterance(path, folder.name, words_of(_transcript(path, listed))) for path in waves]


def describe_speakers(folder: Path) -> dict[str, dict[str, Any]]:
    """What `speakers.json` says about them; nothing if there is none."""
    path = folder / SPEAKERS
    if not path.exists():
        return {}
    try:
        described = json.loads(path.read_text())
        return {str(name): dict(about) for name, about in described.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f'{path} must be like {{"speaker": {{"gender": "female"}}}} ({error}).') from error


def words_of(text: str) -> tuple[str, ...]:
    """
    >>> words_of("Three, 14: don't!")
    ('three', 'one', 'four', "don't")
    """
    spelled = re.sub(r"[0-9]", lambda digit: f" {WORDS[int(digit[0])]} ", text.lower())
    return tuple(re.findall(r"[a-z][a-z']*", spelled))


def _transcript(path: Path, listed: dict[str, str]) -> str:
    beside = path.with_suffix(".txt")
    if path.name in listed:
        return listed[path.name]
    if beside.exists():
        return beside.read_text(errors="replace")
    named = re.match(r"([0-9])_", path.name)
    return named[1] if named else ""


def _listed(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"file", "text"} <= set(rows[0]):
        raise UserError(f"{path} must have a first line `file,text` and a line for every recording.")
    return {row["file"]: row["text"] or "" for row in rows}
