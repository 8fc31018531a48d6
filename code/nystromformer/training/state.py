"""Where a run stands."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class RunState:
    """Where a run stands; what a checkpoint remembers beside weights and optimizer."""

    step: int = 0
    sums: list[float] = field(default_factory=list)
    """Metric sums since the last report."""
    reported_at: int = 0
    """The step of the last report."""
    left_out: int = 0
    """Steps since the last report that float16's loss scaler left out; they are not in the sums."""
    tokens: int = 0
    """Tokens seen since the start."""
    best: list[float] = field(default_factory=list)
    """The best epoch so far and its value, where the settings name a best metric."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)
