"""IMDB to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.tasks.declaration import Data, Task


def _open(choices: Mapping[str, Any], source: Path) -> Any:
    from nystromformer.tasks.imdb.task import Imdb

    return Imdb(source, **choices)


TASK = Task(
    command="imdb",
    does="Fine-tune a pretrained model on IMDb",
    data=Data("imdb_dataset_folder", "--imdb", "data/imdb"),
    folder="imdb",
    name=lambda choices: "IMDB",
    usual_length=512,
    opens=_open,
    on_test=True,
)
