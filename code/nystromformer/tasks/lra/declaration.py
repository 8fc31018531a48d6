"""The Long Range Arena to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.tasks.declaration import Data, Task


def _name(choices: Mapping[str, Any]) -> str:
    """The task, and the track where it is not the paper's."""
    parts = [choices["task"], *([choices["track"]] if choices["track"] != "paper" else [])]
    return "-".join(parts)


def _open(choices: Mapping[str, Any], source: Path) -> Any:
    from nystromformer.config.ranges import MOST
    from nystromformer.tasks.lra.pixels import open_arena
    from nystromformer.tasks.lra.recipe import TRACKS

    return open_arena(choices["task"], source, MOST, TRACKS[choices["track"]])


TASK = Task(
    command="lra",
    does="Train a model on a task of the Long Range Arena",
    data=Data("data_folder", "--data", "experiments/lra"),
    folder="lra",
    name=_name,
    opens=_open,
    on_test=True,
    table="lra",
)
