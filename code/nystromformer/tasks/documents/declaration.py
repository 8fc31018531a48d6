"""Tables of documents to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nystromformer.tasks.declaration import Data, Task


def _tells_apart(texts: Mapping[str, Any]) -> dict[str, str]:
    """What was learned of which columns, and how long texts were cut."""
    columns = {"text": ", ".join(texts["text"]), "label": ", ".join(texts["label"])}
    return columns | {"kind": texts["answer"]["kind"], "cut": texts["cut"]["rule"]}


TASK = Task(
    command="classify",
    does="Fine-tune a pretrained model on a table of documents",
    data=Data("documents_folder", "", "data/documents", files=("--train", "--validation", "--test")),
    folder="documents",
    name=lambda choices: str(choices["table"]),
    tells_apart=_tells_apart,
)
