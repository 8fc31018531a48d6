"""GLUE to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.tasks.declaration import Data, Task
from nystromformer.tasks.glue.catalog import EVERY_TASK, find_tasks

_MEASURES = {task.name: task.measures for task in EVERY_TASK}


def _open(choices: Mapping[str, Any], source: Path) -> Any:
    from nystromformer.tasks.glue.task import Glue

    (task,) = find_tasks(choices["task"])
    return Glue(task, source)


TASK = Task(
    command="glue",
    does="Fine-tune a pretrained model on GLUE",
    data=Data("glue_dataset_folder", "--glue", "glue"),
    folder="glue",
    name=lambda choices: str(choices["task"]),
    measures=lambda choices: _MEASURES.get(choices["task"], ""),
    opens=_open,
)
