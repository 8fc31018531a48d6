"""IMDB to the launcher and the reports."""

from __future__ import annotations

from nystromformer.tasks.declaration import Data, Task

TASK = Task(
    command="imdb",
    does="Fine-tune a pretrained model on IMDb",
    data=Data("imdb_dataset_folder", "--imdb", "data/imdb"),
    folder="imdb",
    name=lambda choices: "IMDB",
    usual_length=512,
    on_test=True,
)
