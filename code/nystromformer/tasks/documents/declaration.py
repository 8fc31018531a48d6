"""Tables of documents to the launcher and the reports."""

from __future__ import annotations

import re
from pathlib import Path

from nystromformer.tasks.declared import Data, Task


def _heading(task: str) -> str | None:
    """The table's name, which fold of it was held out, and what was asked of it."""
    found = re.fullmatch(r"documents/(.+?)(?:-fold-(\d+)-of-(\d+))?( \(.*\))?", task)
    if found is None:
        return None
    name, fold, folds, asked = found.groups()
    return (f"{name}, fold {fold} of {folds}" if fold else name) + (asked or "")


def _asked(folder: Path) -> dict[str, str]:
    """What a run learned of which columns, and how long texts were cut."""
    from nystromformer.tasks.documents.recipe import open_recipe

    recipe, _ = open_recipe(folder)
    columns = {"text": ", ".join(recipe.text), "label": ", ".join(recipe.label)}
    return columns | {"kind": recipe.answer.kind, "cut": recipe.cut.rule}


TASK = Task(
    command="classify",
    does="Fine-tune a pretrained model on a table of documents",
    data=Data("documents_folder", "--documents", "data/documents", files=("--train", "--validation", "--test")),
    results="documents/*/*",
    heading=_heading,
    asked=_asked,
)
