"""How far a command without steps is, as a line of its log."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_BETWEEN_LINES = 15.0
"""After which a command says where it stands, where no terminal shows a bar."""


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

    def _shown(self, amount: float) -> str:
        return f"{amount:.1f}" if self.unit == "MB" else f"{amount:.0f}"
