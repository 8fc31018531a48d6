"""How fast a run is."""

import time
from collections.abc import Iterator

from nystromformer.training.trainable import Step


class Clock:
    """Speed since the last report: tokens a second, and the share of the time that went into waiting for data."""

    def __init__(self, tokens: int) -> None:
        self.restart(tokens)

    def restart(self, tokens: int) -> None:
        self._started, self._tokens, self._waited = time.monotonic(), tokens, 0.0

    def waiting_for(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps, each of them waited for by the clock."""
        begin = time.monotonic()
        for step in steps:
            self._waited += time.monotonic() - begin
            yield step
            begin = time.monotonic()

    def speed(self, tokens: int) -> dict[str, float]:
        """The figures, given the tokens so far; starts anew."""
        seconds = time.monotonic() - self._started
        speed = {"tokens_per_second": (tokens - self._tokens) / seconds, "waiting_for_data": self._waited / seconds}
        self.restart(tokens)
        return speed
