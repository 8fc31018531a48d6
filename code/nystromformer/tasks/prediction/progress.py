"""How far a prediction is: a bar on a terminal, a line every so often elsewhere."""

from __future__ import annotations

import logging
import sys
import time

from tqdm import tqdm

from nystromformer.progress import SECONDS_BETWEEN_LINES, WorkDone
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)


class PredictionProgress:
    """Rows predicted, tokens a second and the time left.

    Args:
        total: rows in all.
        done: rows that an earlier start has predicted.
    """

    def __init__(self, total: int, done: int) -> None:
        self._total = total
        self._before = self._done = done
        self._tokens = 0
        self._begin = self._said = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc="predicting",
            unit="row",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def advance(self, rows: int, tokens: int) -> None:
        """So many more rows, of so many tokens."""
        self._done += rows
        self._tokens += tokens
        self._bar.set_postfix_str(f"{self._rate / 1e3:.1f}k tokens/s", refresh=False)
        self._bar.update(rows)
        if self._bar.disable and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            left = self._seconds / max(self._done - self._before, 1) * (self._total - self._done)
            logger.info("%s", WorkDone("predicting", self._done, self._total, "rows", self._rate, seconds_left=left))

    def close(self) -> None:
        """Say how fast it was."""
        self._bar.close()
        rows = self._done - self._before
        logger.info(
            "predicted %s in %.1f s: %.4g rows/s, %.4g tokens/s",
            *(number_of(rows, "row"), self._seconds, rows / self._seconds, self._rate),
        )

    @property
    def _seconds(self) -> float:
        return max(time.monotonic() - self._begin, 1e-9)

    @property
    def _rate(self) -> float:
        return self._tokens / self._seconds
