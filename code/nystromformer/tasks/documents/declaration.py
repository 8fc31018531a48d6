"""Tables of documents to the launcher and the reports."""

from __future__ import annotations

import re

from nystromformer.tasks.declared import Data, Task


def _heading(task: str) -> str | None:
    """The table's name, and which fold of it was held out."""
    found = re.fullmatch(r"documents/(.+?)(?:-fold-(\d+)-of-(\d+))?", task)
    if found is None:
        return None
    name, fold, folds = found.groups()
    return f"{name}, fold {fold} of {folds}" if fold else name


TASK = Task(
    command="classify",
    does="Fine-tune a pretrained model on a table of documents",
    data=Data("documents_folder", "--documents", "documents", files=("--train", "--validation", "--test")),
    results="documents/*/*",
    heading=_heading,
)
