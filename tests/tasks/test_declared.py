"""What tasks declare of themselves: read by the launcher and the reports."""

import dataclasses
from pathlib import Path

import pytest
from small import ROOT

from nystromformer.config import ExperimentConfig
from nystromformer.container.scripts import SCRIPTS, function_of
from nystromformer.tasks.declared import Task, declared_tasks, task_of

TASKS = {task.command: task for task in declared_tasks()}


def test_every_folder_with_a_declaration_is_found() -> None:
    folders = (ROOT / "code" / "nystromformer" / "tasks").glob("*/declaration.py")
    assert len(TASKS) == len(list(folders))
    assert {"classify", "glue", "imdb", "lra", "wikihop"} <= TASKS.keys()


@pytest.mark.parametrize("name", TASKS)
def test_each_has_a_script_a_key_and_a_folder(name: str) -> None:
    task = TASKS[name]
    assert (ROOT / "code" / task.file).is_file()
    assert SCRIPTS[name].file == task.file
    assert function_of(SCRIPTS[name]).__name__ == name
    assert task.data.key in ExperimentConfig.model_fields
    assert (ROOT / task.data.folder / "README.md").is_file()


def test_a_run_belongs_to_the_task_whose_pattern_it_lies_under() -> None:
    names = {
        "glue/MRPC": "glue",
        "imdb": "imdb",
        "imdb-from-129": "imdb",
        "imdb (n=1024)": "imdb",
        "wikihop": "wikihop",
    }
    names |= {"documents/reviews": "classify", "documents/reviews-fold-2-of-5": "classify"}
    names |= {"lra/listops": "lra", "lra/image-as-published": "lra"}
    assert {name: task.command for name in names if (task := task_of(name)) is not None} == names
    assert task_of("chess") is None
    assert task_of("glue") is None


def test_what_a_column_is_called() -> None:
    called = {"glue/SST-2": "SST-2", "imdb-from-129 (n=1024)": "IMDB from 129 tokens, n=1024", "imdb": "IMDB"}
    called |= {"documents/reviews": "reviews", "documents/my-fold-x-fold-2-of-5": "my-fold-x, fold 2 of 5"}
    assert {name: task.called(name) for name in called if (task := task_of(name)) is not None} == called
    one: Task = dataclasses.replace(TASKS["lra"], columns={"lra/a": "A"})
    assert (one.called("lra/a"), one.called("lra/b")) == ("A", "lra/b")
    assert Path(one.file).stem == "run_lra"
