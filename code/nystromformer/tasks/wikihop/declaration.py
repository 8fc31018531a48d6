"""WikiHop to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.tasks.declaration import Data, Task


def _open(choices: Mapping[str, Any], source: Path) -> Any:
    from nystromformer.tasks.wikihop.task import WikiHop

    return WikiHop(source, validation=None, split_seed=0)


TASK = Task(
    command="wikihop",
    does="Fine-tune a pretrained model on WikiHop",
    data=Data("wikihop_dataset_folder", "--wikihop", "wikihop"),
    folder="wikihop",
    name=lambda choices: "WikiHop",
    opens=_open,
    has_baselines=False,
)
