"""The Long Range Arena to the launcher, the reports and the command, which need neither torch nor numpy here; and the
tracks that it is trained on, which stand apart in every table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from nystromformer.tasks.declaration import Data, Task

TrackName = Literal["paper", "modern"]
"""paper: the authors' recipe. modern: rotary positions, an auxiliary loss of masked tokens, pictures moved (after
Miralles-González et al. 2025, arXiv 2501.14850).
"""
MODERN = {"model.positions": "rotary", "model.position_offset": "2"}
"""What the track modern writes over a config.json."""
HIDDEN = 0.5
"""Share of a batch's examples of which it has masked tokens guessed in place of the class."""
MASK_RATES = {"listops": 0.1, "text": 0.15, "retrieval": 0.15, "image": 0.5, "pathfinder": 0.5}
"""Share of a hidden example's tokens that are to be guessed."""

PATH = "pathfinder_path"
"""Pathfinder with a label of each pixel, no task of the Long Range Arena."""
TaskName = Literal["listops", "text", "retrieval", "image", "pathfinder", "pathfinder_path"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)


def _name(choices: Mapping[str, Any]) -> str:
    """The task, and the track where it is not the paper's."""
    return choices["task"] if choices["track"] == "paper" else f"{choices['task']}-{choices['track']}"


TASK = Task(
    command="lra",
    does="Train a model on a task of the Long Range Arena",
    data=Data("data_folder", "--data", "experiments/lra"),
    folder="lra",
    name=_name,
    on_test=True,
    table="lra",
)
