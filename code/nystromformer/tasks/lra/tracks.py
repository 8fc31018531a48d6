"""How the Long Range Arena is trained on: the ways that stand apart in every table.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nystromformer.errors import UserError


@dataclass(frozen=True)
class Track:
    """A way."""

    name: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What it writes over a config.json."""
    hidden: float = 0.0
    """Share of a batch's examples of which masked tokens are guessed in place of the class."""
    moves_pictures: bool = False
    pretrains: bool = False
    """Whether a phase of masked tokens comes first, on the task's own training inputs."""

    @property
    def suffix(self) -> str:
        """Of the task's name in results."""
        return "" if self.name == "paper" else f"-{self.name}"


_ROTARY = {"model.positions": "rotary", "model.position_offset": "2"}
TRACKS = {
    track.name: track
    for track in (
        Track("paper"),
        Track("modern", _ROTARY, hidden=0.5, moves_pictures=True),
        Track("spt", _ROTARY, pretrains=True),
    )
}
"""paper: the authors' recipe. modern: rotary positions, an auxiliary loss of masked tokens, pictures moved (after
Miralles-González et al. 2025, arXiv 2501.14850). spt: self-pretraining (Amos et al. 2024, arXiv 2310.02980), with
rotary positions.
"""
MASK_RATES = {"listops": 0.1, "text": 0.15, "retrieval": 0.15, "image": 0.5, "pathfinder": 0.5}
"""Share of a hidden example's tokens that are to be guessed (Amos et al.)."""
TOKEN_RATES = {"listops": 1e-3, "text": 5e-4, "retrieval": 5e-3, "image": 1e-3, "pathfinder": 1e-3}
"""Highest learning rate of self-pretraining (Amos et al.)."""
CLASS_RATES = {"listops": 1e-4, "text": 1e-4, "retrieval": 5e-4, "image": 1e-3, "pathfinder": 5e-4}
"""And of what follows it."""


def find_track(name: str) -> Track:
    """The track of a name.

    Raises:
        UserError: there is none; lists those there are.
    """
    if name not in TRACKS:
        raise UserError(f"--track {name}: expected one of {', '.join(TRACKS)}")
    return TRACKS[name]
