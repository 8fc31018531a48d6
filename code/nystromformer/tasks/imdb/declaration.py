"""IMDB to the launcher and the reports."""

import re

from nystromformer.tasks.declared import Data, Task


def _heading(task: str) -> str | None:
    """With what it says of the reviews' tokens and of the rows'."""
    found = re.fullmatch(r"imdb(?:-from-(\d+))?(?: \(n=(\d+)\))?", task)
    if found is None:
        return None
    least, length = found.groups()
    return "IMDB" + (f" from {least} tokens" if least else "") + (f", n={length}" if length else "")


TASK = Task(
    command="imdb",
    does="Fine-tune a pretrained model on IMDb",
    data=Data("imdb_dataset_folder", "--imdb", "data/imdb"),
    results="imdb*/*",
    heading=_heading,
    usual_length=512,
    on_test=True,
)
