"""What tasks declare of themselves: read by the launcher and the reports."""

import pytest
from small import ROOT

from nystromformer.config import ExperimentConfig
from nystromformer.container.scripts import SCRIPTS, function_of
from nystromformer.errors import UserError
from nystromformer.tasks.declaration import declared_tasks, task_of

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
    assert function_of(SCRIPTS[name].file).__name__ == name
    assert task.data.key in ExperimentConfig.model_fields
    assert (ROOT / task.data.folder / "README.md").is_file()


def test_a_kind_that_is_not_known() -> None:
    with pytest.raises(UserError, match=r"chess: expected a task of this version \(classify, glue, imdb"):
        task_of("chess")


@pytest.mark.parametrize(
    ("kind", "choices", "name"),
    [
        ("glue", {"task": "SST-2"}, "SST-2"),
        ("imdb", {}, "IMDB"),
        ("classify", {"table": "reviews"}, "reviews"),
        ("lra", {"task": "image", "track": "modern"}, "image-modern"),
        ("wikihop", {}, "WikiHop"),
    ],
)
def test_what_a_task_is_called(kind: str, choices: dict[str, object], name: str) -> None:
    assert task_of(kind).name(choices) == name
