"""The scripts that the launcher runs on experiment folders, and where the data of each are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.files.paths import PROJECT
from nystromformer.tasks.declaration import Data, declared_tasks

CODE_FOLDER = PROJECT / "code"

LABEL = "nystromformer."
COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL = LABEL + "command", LABEL + "experiment", LABEL + "gpus"


@dataclass(frozen=True)
class Script:
    """A script that runs on an experiment folder."""

    command: str
    file: str
    does: str
    """For people who choose a command."""
    data: Data
    shares_gpus: bool = True
    """Whether several processes share its work (torchrun)."""


PRETRAINING = Data("data_folder", "--dataset", "data-preprocessing/{length}-roberta")
SCRIPTS = {
    script.command: script
    for script in (
        Script("pretrain", "run_pretrain.py", "Pretrain an experiment's model", PRETRAINING),
        Script(
            "validate",
            "run_validation.py",
            "Measure a pretrained model on held-out text",
            PRETRAINING,
            shares_gpus=False,
        ),
        *(Script(task.command, task.file, task.does, task.data) for task in declared_tasks()),
    )
}


def function_of(script: Script) -> Callable[..., Any]:
    """What a script runs, from its flags: `run_NAME.py` has a function `NAME`."""
    module = Path(script.file).stem
    function: Callable[..., Any] = getattr(importlib.import_module(module), module.removeprefix("run_"))
    return function
