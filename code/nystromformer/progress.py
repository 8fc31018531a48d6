"""How far a command without steps is, as a line of its log, and back: `launch.py ps` reads what commands write.

Standard library only: it runs inside containers, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

SECONDS_BETWEEN_LINES = 15.0
"""After which a command says where it stands, where no terminal shows a bar."""

_LINE = re.compile(
    r"(?P<label>.+): (?P<done>\d+(?:\.\d+)?)(?: of (?P<total>\d+(?:\.\d+)?))? (?P<unit>[a-zA-Z]+)"
    r"(?:, (?P<rate>\d+)k (?P<counted>[a-z]+)/s)?(?:, (?P<minutes>\d+):(?P<seconds>[0-5]\d) left)?"
)


@dataclass(frozen=True)
class WorkDone:
    """Of one piece of work.

    Args:
        label: what is being done.
        done, total: in `unit`s; a total of None: not known.
        unit: MB, which are shown with a decimal, or what is counted.
        rate: so many `counted` a second; None: not known.
        seconds_left: None: not known.
    """

    label: str
    done: float
    total: float | None
    unit: str
    rate: float | None = None
    counted: str = "tokens"
    seconds_left: float | None = None

    def __str__(self) -> str:
        whole = "" if self.total is None else f" of {self._shown(self.total)}"
        parts = [f"{self.label}: {self._shown(self.done)}{whole} {self.unit}"]
        if self.rate is not None:
            parts.append(f"{self.rate / 1e3:.0f}k {self.counted}/s")
        if self.seconds_left is not None:
            minutes, seconds = divmod(round(self.seconds_left), 60)
            parts.append(f"{minutes}:{seconds:02d} left")
        return ", ".join(parts)

    @property
    def short(self) -> str:
        """`wiki: 345.2/1200.0 MB`."""
        whole = "" if self.total is None else f"/{self._shown(self.total)}"
        return f"{self.label}: {self._shown(self.done)}{whole} {self.unit}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Of such a line, to the digits that it has; None of any other."""
        match = _LINE.fullmatch(text)
        if match is None:
            return None
        total, rate, minutes = match["total"], match["rate"], match["minutes"]
        return cls(
            match["label"],
            float(match["done"]),
            None if total is None else float(total),
            match["unit"],
            None if rate is None else 1e3 * float(rate),
            match["counted"] or "tokens",
            None if minutes is None else 60 * float(minutes) + float(match["seconds"]),
        )

    def _shown(self, amount: float) -> str:
        return f"{amount:.1f}" if self.unit == "MB" else f"{amount:.0f}"
