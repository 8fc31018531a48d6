"""The Long Range Arena to the launcher and the reports."""

from nystromformer.tasks.declared import Data, Task

TASK = Task(
    command="lra",
    does="Train a model on a task of the Long Range Arena",
    data=Data("data_folder", "--data", "experiments/lra"),
    results="lra/*/*",
    on_test=True,
    table="lra",
)
