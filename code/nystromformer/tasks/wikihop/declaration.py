"""WikiHop to the launcher and the reports."""

from nystromformer.tasks.declared import Data, Task

TASK = Task(
    command="wikihop",
    does="Fine-tune a pretrained model on WikiHop",
    data=Data("wikihop_dataset_folder", "--wikihop", "wikihop"),
    results="wikihop/*",
    columns={"wikihop": "WikiHop"},
    has_baselines=False,
)
