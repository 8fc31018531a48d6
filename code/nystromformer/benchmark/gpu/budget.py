"""The time limit: what is not begun because too little is left."""

import time
from collections.abc import Callable, Sequence

from nystromformer.benchmark.gpu.items import Item

SHARES = {"compile": 0.08, "check": 0.28, "ceilings": 0.03, "kernels": 0.08, "attention": 0.25, "training": 0.3}
"""Of the time, by section. What a section leaves over goes to those behind it."""
GRACE = 15.0
"""Seconds past the limit after which a running item is stopped."""


class Budget:
    """When each section must be done.

    Args:
        sections: those that run, in order.
        now: seconds, of a clock that all processes share.
    """

    def __init__(self, minutes: float, sections: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        begin = now()
        self._end = begin + 60 * minutes
        whole = sum(SHARES[name] for name in sections)
        used = 0.0
        self._ends: dict[str, float] = {}
        for name in sections:
            used += SHARES[name]
            self._ends[name] = begin + 60 * minutes * used / whole

    def refusal(self, item: Item) -> str | None:
        """Why an item is not begun now; None where there is time for it."""
        left = self._ends[item.section] - self._now()
        if left >= item.seconds:
            return None
        return f"the time limit: of {item.section}'s time {max(0.0, left):.0f} s are left, this takes about " + (
            f"{item.seconds:.0f} s"
        )

    def until_stopped(self) -> float:
        """Seconds until whatever still runs is stopped."""
        return max(0.0, self._end + GRACE - self._now())
