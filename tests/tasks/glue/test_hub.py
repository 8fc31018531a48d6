"""GLUE from the hub: a stand-in for the datasets library, and no network."""

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nystromformer.errors import UserError
from nystromformer.tasks.glue.catalog import TASKS, find_tasks
from nystromformer.tasks.glue.read import read_hub_split
from nystromformer.tasks.glue.table_task import GlueTask, three_splits


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """What was asked of the stand-in, which answers with two rows of every column that GLUE's hub copy knows."""
    calls: list[tuple[str, str, str]] = []

    def load_dataset(name: str, config: str, split: str) -> dict[str, list[Any]]:
        calls.append((name, config, split))
        columns = ("sentence1", "sentence2", "question1", "question2", "premise", "hypothesis", "question", "sentence")
        label = [-1, -1] if split.startswith("test") else [1.0, 4.75] if config == "stsb" else [1, 0]
        return {**{column: [f"{column} {n}" for n in range(2)] for column in columns}, "label": label}

    stand_in(monkeypatch, load_dataset)
    return calls


def stand_in(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    real = importlib.import_module

    def import_module(name: str, *args: Any) -> Any:
        return SimpleNamespace(load_dataset=load_dataset) if name == "datasets" else real(name, *args)

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_split_of_every_task(asked: list[tuple[str, str, str]], task: GlueTask) -> None:
    for split in task.splits:
        texts = read_hub_split(task, split.name)
        assert texts.name == f"{task.name} {split.name}"
        assert list(texts.first) == [f"{task.hub_sentences[0]} {n}" for n in range(2)]
        if len(task.hub_sentences) == 1:
            assert texts.second is None
        else:
            assert texts.second == [f"{task.hub_sentences[1]} {n}" for n in range(2)]
        if split.has_labels:
            assert texts.labels is not None
            np.testing.assert_allclose(texts.labels, [1, 4.75] if task.labels is None else [1, 0])
            assert texts.labels.dtype == (np.float32 if task.labels is None else np.int64)
        else:
            assert texts.labels is None
    assert [call[0] for call in asked] == ["nyu-mll/glue"] * len(task.splits)
    assert asked[0][1:] == (task.name.lower().replace("-", ""), "train")
    dev = [call[2] for call in asked if call[2].startswith("validation")]
    assert dev == (["validation_matched", "validation_mismatched"] if task.name == "MNLI" else ["validation"])


def test_any_failure_names_the_network_and_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route\nto host")

    stand_in(monkeypatch, load_dataset)
    (task,) = find_tasks("MNLI")
    with pytest.raises(UserError, match=r"MNLI dev_matched cannot be loaded .*network.*gluebenchmark") as info:
        read_hub_split(task, "dev_matched")
    assert "\n" not in str(info.value)


def test_a_task_that_is_not_there(asked: list[tuple[str, str, str]]) -> None:
    task = replace(TASKS[0], name="Mine", splits=three_splits("Mine", None, 3, 2, 2))
    with pytest.raises(UserError, match="Mine has no copy on the hub: give --glue a folder"):
        read_hub_split(task, "train")
    assert not asked
