"""The tasks that a model is fine-tuned or trained on, each declared once.

A task is a folder of this package with a module `declaration`, whose `TASK` the launcher, the reports and the tests
read. It is imported on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from nystromformer.errors import UserError


@dataclass(frozen=True)
class Data:
    """Where a script's data are.

    Args:
        key: of config.json, naming a folder in the container.
        flag: of the script, which the launcher takes for a folder of this machine.
        folder: in the project where neither names one; {length} is the model's `max_seq_len`.
        files: flags of the script that name files, which the launcher mounts one by one where `flag` is not given.
    """

    key: str
    flag: str
    folder: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A task, or several that one script trains on."""

    command: str
    """The launcher's; `run_COMMAND.py` is the script, with a function of this name."""
    does: str
    """For people who choose a command."""
    data: Data
    folder: str
    """Of its runs, below an experiment's checkpoints; a pattern where there are several."""
    name: Callable[[Mapping[str, Any]], str]
    """What a run's task is called in tables, by what the run asked of its data (`Definition.choices`)."""
    measures: Callable[[Mapping[str, Any]], str] = lambda choices: ""
    """What its figures are, beside the name at the head of a column."""
    usual_length: int | None = None
    """Tokens of the longest row; runs on longer ones have a column of their own. None: there is no such."""
    tells_apart: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    """By what a run keeps of its texts, in what runs of one name may differ; those that differ in it, or in their
    length, have columns of their own.
    """
    on_test: bool = False
    """Whether its figures are of test data where a run has them."""
    has_baselines: bool = True
    table: Literal["table2", "lra", "transactions"] = "table2"
    """The report that shows its runs."""

    @property
    def file(self) -> str:
        return f"run_{self.command}.py"


@cache
def declared_tasks() -> tuple[Task, ...]:
    """All of them, in the alphabetical order of their folders."""
    package = importlib.import_module(__package__)
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg)
    places = {name: Path(package.__path__[0]) / name / "declaration.py" for name in names}
    modules = [
        importlib.import_module(f"{__package__}.{name}.declaration")
        for name, place in places.items()
        if place.is_file()
    ]
    return tuple(module.TASK for module in modules)


def task_of(kind: str) -> Task:
    """The one that a run's kind names.

    Raises:
        UserError: this version has none of that name.
    """
    for task in declared_tasks():
        if task.command == kind:
            return task
    known = ", ".join(task.command for task in declared_tasks())
    raise UserError(f"{kind}: expected a task of this version ({known})")
