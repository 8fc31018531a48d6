"""Clients' events to the launcher, the reports and the command, which need neither torch nor numpy here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nystromformer.tasks.declaration import Data, Task

Architecture = Literal["encoder", "lstm", "gru"]
"""What may read the events."""


def _name(choices: Mapping[str, Any]) -> str:
    """The data, and the network where it is not an encoder."""
    return "-".join([choices["data"], *([choices["network"]] if choices["network"] != "encoder" else [])])


TASK = Task(
    command="transactions",
    does="Train a model on clients' events, such as card transactions",
    data=Data("data_folder", "--data", "data/transactions"),
    folder="transactions",
    table="transactions",
    name=_name,
    on_test=True,
)
