"""The section of a page that one listens to: the same strings by every method beside the real speaker."""

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float32, UInt8

from ..data.speech import RATE
from .load import LoadedRun
from .numbers import clean, short
from .voices import MEASURES, REAL, Voices, method_title, num_utterances, scores_of

LARGEST = 8_000_000
"""Characters of sound a page may hold."""
MOST_SPEAKERS, MOST_STRINGS = 5, 2
_MULAW = 7
"""Of the wav format."""


@dataclass(frozen=True)
class Column:
    """One method of one run, as it is called on the page."""

    title: str
    run: LoadedRun
    voices: Voices
    method: str


def columns_of(runs: Sequence[LoadedRun]) -> list[Column]:
    """All methods of one run; of several those that adapt to as much of a speaker as there is."""
    found = [(run, run.voices) for run in runs if run.voices is not None]
    if len(runs) == 1:
        return [Column(method_title(one), run, voices, one) for run, voices in found for one in _in_order(voices)]
    columns = []
    for run, voices in found:
        chosen = _most_utterances(voices)
        for method in chosen:
            modules = "" if len(chosen) == 1 else f", {method.rpartition('-')[0]} modules"
            columns.append(Column(f"{clean(run.name)}{modules}", run, voices, method))
    return columns


def listen(columns: Sequence[Column]) -> str:
    """Players, or nothing if there are no voices."""
    rows = list(_rows(columns))
    shown, size = [], 0
    for row in rows:
        size += len(row)
        if size > LARGEST:
            break
        shown.append(row)
    note = "Test speakers, whose voices were not in training. Every method says what the real speaker says in the same "
    note += "recording, with its pitch and timing. 16 kHz, 8-bit mu-law, as the network makes it."
    if len(shown) < len(rows):
        note += f" {len(rows) - len(shown)} more strings are in the folders of the runs; they would not fit here."
    return f'<p class="hint">{escape(note)}</p>\n{"".join(shown)}' if shown else ""


def _rows(columns: Sequence[Column]) -> Iterator[str]:
    if not columns:
        return
    run, first = columns[0].run, columns[0].voices
    for place, speaker in enumerate(first.speakers[:MOST_SPEAKERS]):
        for string, digits in enumerate(first.digits[place][:MOST_STRINGS]):
            clips = [_clip("real speaker", run, first, REAL, (place, string))]
            found = [(column, column.voices.find(speaker, digits)) for column in columns]
            clips += [_clip(c.title, c.run, c.voices, c.method, at) for c, at in found if at is not None]
            said = " ".join(map(str, digits))
            yield f'<h3>Speaker {speaker}: {said}</h3>\n<div class="clips">{"".join(clips)}</div>\n'


def _clip(title: str, run: LoadedRun, voices: Voices, method: str, at: tuple[int, int]) -> str:
    row, string = at
    sound = wav_uri(voices.waves[method][row][string])
    scores = scores_of(run.measures, method, row)
    numbers = [f"{MEASURES[measure].lower()} {short(value, 2)}" for measure, value in scores.items()]
    judged = f"<p>{escape(', '.join(numbers))}</p>" if numbers else ""
    return (
        f'<div class="clip"><p>{escape(clean(title))}</p>'
        f'<audio controls preload="metadata" src="{sound}"></audio>{judged}</div>\n'
    )


def wav_uri(wave: Float32[np.ndarray, " samples"]) -> str:
    """A wave between -1 and 1 as a wav file of 8-bit mu-law inside a link."""
    data = g711(wave).tobytes()
    form = struct.pack("<4sIHHIIHHH", b"fmt ", 18, _MULAW, 1, RATE, RATE, 1, 8, 0)
    fact = struct.pack("<4sII", b"fact", 4, len(data))
    body = b"WAVE" + form + fact + struct.pack("<4sI", b"data", len(data)) + data + b"\0" * (len(data) % 2)
    return "data:audio/wav;base64," + base64.b64encode(b"RIFF" + struct.pack("<I", len(body)) + body).decode()


def g711(wave: Float32[np.ndarray, " samples"]) -> UInt8[np.ndarray, " samples"]:
    """Mu-law as the telephone has it: a sign, three bits of exponent, four of mantissa, all of them inverted.

    >>> import numpy as np
    >>> g711(np.array([0.0, -1.0, 1.0], np.float32))
    array([255,   0, 128], dtype=uint8)
    """
    bias, most = 132, 32635
    size = np.minimum(np.abs(np.round(wave.astype(np.float64) * 32768)), most).astype(int) + bias
    exponent = np.floor(np.log2(size)).astype(int) - 7
    mantissa = (size >> (exponent + 3)) & 0x0F
    sign = np.where(wave < 0, 0x80, 0)
    return (255 - (sign | exponent << 4 | mantissa)).astype(np.uint8)


def _most_utterances(voices: Voices) -> list[str]:
    ordered = _in_order(voices)
    return [method for method in ordered if num_utterances(method) == num_utterances(ordered[0])]


def _in_order(voices: Voices) -> list[str]:
    """The most utterances first."""
    return sorted(voices.methods, key=lambda method: (-num_utterances(method), method))
