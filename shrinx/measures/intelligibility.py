"""Can the digits be understood? A recogniser that knows ten words (pocketsphinx) writes down what it hears.

It is told how many digits there are. Left to find that out it takes the noise between real digits for further ones, and
gets half of them wrong. So digits left out or added count only as far as they displace others.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ..data.speech import RATE
from ..data.transcripts import WORDS

# Wider than the defaults, which lose the right path in strings of several words.
_BEAMS = {"beam": 1e-80, "pbeam": 1e-80, "wbeam": 1e-60}


def heard_digits(waves: Sequence[Float[np.ndarray, " _"]], num_digits: int) -> list[tuple[int, ...]]:
    """The digits heard in each wave, `num_digits` of them; none where nothing fits."""
    from pocketsphinx import Config, Decoder  # pyright: ignore[reportMissingImports]

    digit = f"( {' | '.join(WORDS)} )"
    grammar = f"#JSGF V1.0; grammar digits; public <digits> = {' '.join([digit] * num_digits)} ;"
    decoder = Decoder(Config(lm=None, loglevel="FATAL", samprate=RATE, **_BEAMS))
    decoder.add_jsgf_string("digits", grammar)
    decoder.activate_search("digits")
    heard = []
    for wave in waves:
        decoder.start_utt()
        decoder.process_raw(np.round(np.clip(wave, -1, 1) * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        said = decoder.hyp()
        heard.append(tuple(WORDS.index(word) for word in said.hypstr.split()) if said is not None else ())
    return heard


def digit_accuracy(heard: Sequence[Sequence[int]], said: Sequence[Sequence[int]]) -> float:
    """1 - (wrong, missing and additional digits) / (digits said), over all strings.

    >>> digit_accuracy([(3, 1, 4), (1,)], [(3, 1, 4), (1, 5)])
    0.8
    """
    wrong = sum(_edits(tuple(ours), tuple(theirs)) for ours, theirs in zip(heard, said, strict=True))
    return 1 - wrong / sum(map(len, said))


def _edits(ours: tuple[int, ...], theirs: tuple[int, ...]) -> int:
    """The fewest insertions, deletions and replacements that turn one into the other."""
    row = list(range(len(theirs) + 1))
    for index, digit in enumerate(ours, start=1):
        diagonal, row[0] = row[0], index
        for place, other in enumerate(theirs, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (digit != other))
    return row[-1]
