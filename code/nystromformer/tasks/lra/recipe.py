"""How the Long Range Arena is trained on: the tracks, which stand apart in every table, and the encoder's attention.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from nystromformer.config import ExperimentConfig, peek_config
from nystromformer.config.overrides import overridden
from nystromformer.runs.settings import Settings
from nystromformer.tasks.finetuning.flags import Flags, RecipeFlags


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

AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "nystrom": {"segments": "padded", "pinv_start": "batch"},
}
"""What the code of the paper's authors computes otherwise than the attention of that name, for `--as_published`."""


def add_as_published(config_file: Path, overrides: Sequence[str], given: Sequence[str], padded: int) -> list[str]:
    """Overrides of a valid config.json, with attention that computes what the code of the paper's authors does.

    Args:
        given: those of the overrides whose parameters of the attention stay as they are.
        padded: tokens of every row: the longest that the model takes, because the authors' landmarks, chunks and
            projections are of the padded length.
    """
    set_by_hand = {key.rpartition(".")[2] for key in overridden(given) if key.startswith("model.attn_type")}

    def change(attention: Any) -> Any:
        if isinstance(attention, list):
            return [change(each) for each in attention]
        layer = {"name": attention} if isinstance(attention, str) else attention
        changes = AS_PUBLISHED.get(layer["name"], {})
        return layer | {key: value for key, value in changes.items() if key not in set_by_hand}

    attention = change(peek_config(config_file, overrides)["model"]["attn_type"])
    others = [each for each in overrides if not each.startswith(("model.attn_type", "model.max_seq_len"))]
    return [*others, f"model.attn_type={json.dumps(attention)}", f"model.max_seq_len={padded}"]


def plan_runs(
    config: ExperimentConfig,
    recipe: RecipeFlags,
    flags: Flags,
    steps: int | None,
    every: int | None,
    as_published: bool,
) -> tuple[Settings, Flags]:
    """The runs of a command: as config.json's `pretraining_setting` says, but for the flags that are given.

    Args:
        steps, every: of training, and from one validation to the next.
        as_published: pad every row as the authors of the paper did, to the power of two from its longest length on:
            their mean over a row depends on what it is padded to, so that it may not be the longest row of a batch.
    """
    setting = config.pretraining_setting
    period, count = every or setting.batches_per_epoch, steps or setting.num_steps
    usual = replace(recipe.usual(setting), epochs=-(-count // period), steps=count, every=min(period, count))
    if as_published and flags.pad_to is None:
        length = flags.length or config.model.max_seq_len
        flags = replace(flags, length=length, pad_to=1 << (length - 1).bit_length())
    return usual, flags
