"""GLUE to the launcher and the reports."""

from __future__ import annotations

from nystromformer.tasks.declaration import Data, Task
from nystromformer.tasks.glue.catalog import EVERY_TASK

_MEASURES = {task.name: task.measures for task in EVERY_TASK}

TASK = Task(
    command="glue",
    does="Fine-tune a pretrained model on GLUE",
    data=Data("glue_dataset_folder", "--glue", "glue"),
    folder="glue",
    name=lambda choices: str(choices["task"]),
    measures=lambda choices: _MEASURES.get(choices["task"], ""),
)
