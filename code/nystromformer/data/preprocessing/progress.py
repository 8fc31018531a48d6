"""Progress of a long command: a bar on a terminal, a line every so often elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

from tqdm import tqdm

from nystromformer.progress import SECONDS_BETWEEN_LINES, WorkDone

log = logging.getLogger(__name__)


class ReadingProgress:
    """Bytes of text read, tokens or words a second, and the time left; a context manager, called as `pool.Report`.

    Args:
        label: what is being done.
        total: bytes in all; 0 where that is not known.
        done: bytes that an earlier run has done.
        counted: what is reported besides bytes: tokens or words.
    """

    def __init__(self, label: str, total: int, done: int = 0, counted: str = "tokens") -> None:
        self._label = label
        self._counted = counted
        self._total = total
        self._before = self._done = done
        self._tokens = 0
        self._begin = self._said = time.monotonic()
        shown = sys.stderr.isatty()
        self._bar = tqdm(total=total or None, initial=done, desc=label, unit="B", unit_scale=True) if shown else None

    def __enter__(self) -> ReadingProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, size: int, tokens: int) -> None:
        self._done += size
        self._tokens += tokens
        if self._bar is not None:
            if self._tokens:
                self._bar.set_postfix_str(f"{self._rate() / 1e3:.0f}k {self._counted}/s", refresh=False)
            self._bar.update(size)
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            log.info("%s", self.line())

    def line(self) -> str:
        """Where it stands, in words."""
        speed = (self._done - self._before) / max(time.monotonic() - self._begin, 1e-9)
        left = max(self._total - self._done, 0) / speed if speed > 0 and self._total else None
        total, rate = self._total / 1e6 or None, self._rate() if self._tokens else None
        return str(WorkDone(self._label, self._done / 1e6, total, "MB", rate, self._counted, left))

    def _rate(self) -> float:
        """Tokens or words a second."""
        return self._tokens / max(time.monotonic() - self._begin, 1e-9)
