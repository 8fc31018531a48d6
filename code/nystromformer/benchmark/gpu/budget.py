"""The time limit: what is not begun because too little is left."""

import time
from collections.abc import Callable, Sequence

from nystromformer.benchmark.pieces import Piece

SHARES = {"compile": 0.1, "check": 0.25, "ceilings": 0.03, "kernels": 0.07, "attention": 0.27, "training": 0.28}
"""Of the time, by section. What a section leaves over goes to those behind it."""
BESIDE = "check"
GRACE = 10.0
"""Seconds past its section's end after which a running piece is stopped: one without end costs its section alone."""


class Budget:
    """When each section must be done.

    Args:
        sections: those that run, in order.
        now: seconds, of a clock that all processes share.
    """

    def __init__(self, minutes: float, sections: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        begin = now()
        whole = sum(SHARES[name] for name in sections)
        used = 0.0
        self._ends: dict[str, float] = {}
        for name in sections:
            used += SHARES[name]
            self._ends[name] = begin + 60 * minutes * used / whole
        if BESIDE in self._ends:
            # The two run together.
            self._ends["compile"] = self._ends[BESIDE]

    def refusal(self, piece: Piece) -> str | None:
        """Why a piece is not begun now; None where there is time for it."""
        left = self._ends[piece.section] - self._now()
        if left >= piece.seconds:
            return None
        return f"the time limit: of {piece.section}'s time {max(0.0, left):.0f} s are left, this takes about " + (
            f"{piece.seconds:.0f} s"
        )

    def until_stopped(self, section: str) -> float:
        """Seconds until what still runs of a section is stopped."""
        return max(0.0, self._ends[section] + GRACE - self._now())
