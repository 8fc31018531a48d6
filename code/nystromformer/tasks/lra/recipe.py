"""How the Long Range Arena is trained on: the tracks, which stand apart in every table, and the encoder's attention.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from nystromformer.config import ExperimentConfig
from nystromformer.runs.settings import Settings
from nystromformer.tasks.finetuning.flags import RecipeFlags


@dataclass(frozen=True)
class Track:
    """A way to train."""

    name: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    """What it writes over a config.json."""
    hidden: float = 0.0
    """Share of a batch's examples of which masked tokens are guessed in place of the class."""
    moves_pictures: bool = False


TRACKS = {
    track.name: track
    for track in (
        Track("paper"),
        Track("modern", {"model.positions": "rotary", "model.position_offset": "2"}, hidden=0.5, moves_pictures=True),
    )
}
"""paper: the authors' recipe. modern: rotary positions, an auxiliary loss of masked tokens, pictures moved (after
Miralles-González et al. 2025, arXiv 2501.14850).
"""
MASK_RATES = {"listops": 0.1, "text": 0.15, "retrieval": 0.15, "image": 0.5, "pathfinder": 0.5}
"""Share of a hidden example's tokens that are to be guessed."""

PATH = "pathfinder_path"
"""Pathfinder with a label of each pixel, no task of the Long Range Arena."""
TaskName = Literal["listops", "text", "retrieval", "image", "pathfinder", "pathfinder_path"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
TrackName = Literal["paper", "modern"]


def usual_settings(config: ExperimentConfig, recipe: RecipeFlags, steps: int | None, every: int | None) -> Settings:
    """The runs of a command: as config.json's `pretraining_setting` says, but for the flags that are given.

    Args:
        steps, every: of training, and from one validation to the next.
    """
    setting = config.pretraining_setting
    period, count = every or setting.batches_per_epoch, steps or setting.num_steps
    return replace(recipe.usual(setting), epochs=-(-count // period), steps=count, every=min(period, count))
