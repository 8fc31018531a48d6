"""Clients' events to the launcher and the reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nystromformer.tasks.declaration import Data, Task


def _name(choices: Mapping[str, Any]) -> str:
    """The data, the network where it is not an encoder, whether rows are shifted, and what alone is trained."""
    parts = [choices["data"], *([choices["network"]] if choices["network"] != "encoder" else [])]
    ways = {"shifted": choices["cycle_shift"], "attention-alone": choices["attention_alone"]}
    return "-".join([*parts, *(name for name, chosen in ways.items() if chosen)])


TASK = Task(
    command="transactions",
    does="Train a model on clients' events, such as card transactions",
    data=Data("data_folder", "--data", "data/transactions"),
    folder="transactions",
    table="transactions",
    name=_name,
    on_test=True,
)
