"""How long the pieces should be that long work is cut into, so that it can be watched and interrupted."""

import time

SHORTEST, LONGEST = 0.2, 1.0
"""Seconds that a piece should take."""


class Pace:
    """Steps of the next piece: few at first, then as many as take neither too short nor too long.

    How a way is cut into pieces must not change where it leads.
    """

    def __init__(self):
        self.length = 1
        self._began: float | None = None

    def lap(self) -> None:
        """A piece is finished."""
        now, began = time.monotonic(), self._began
        self._began = now
        # The first piece is compiled, which says nothing about how long the others take.
        if began is None:
            return
        if now - began < SHORTEST:
            self.length *= 2
        elif now - began > LONGEST:
            self.length = max(1, self.length // 2)
