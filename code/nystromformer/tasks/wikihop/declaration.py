"""WikiHop to the launcher and the reports."""

from __future__ import annotations

from nystromformer.tasks.declaration import Data, Task

TASK = Task(
    command="wikihop",
    does="Fine-tune a pretrained model on WikiHop",
    data=Data("wikihop_dataset_folder", "--wikihop", "wikihop"),
    folder="wikihop",
    name=lambda choices: "WikiHop",
    has_baselines=False,
)
