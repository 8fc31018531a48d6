"""docs/adding.md, "An objective": its files in a copy of the project, its commands, on a small model and dataset."""

import json
import shlex
from pathlib import Path

import pytest
from doc_examples import ROOT, Block, apply, blocks, commands, copy_of_project, run
from small import small_data


def example_blocks() -> list[Block]:
    return blocks(ROOT / "docs" / "adding.md", "An objective")


def test_the_page_names_every_file() -> None:
    assert [block.file for block in example_blocks() if block.file] == [
        "code/nystromformer/tasks/pretraining/first_character.py",
        "code/nystromformer/config/schema.py",
        "code/nystromformer/tasks/pretraining/objectives.py",
        "code/nystromformer/model/build.py",
        "tests/tasks/pretraining/test_first_character.py",
    ]


@pytest.mark.slow
def test_an_objective_is_added_as_the_page_says(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project, examples = copy_of_project(tmp_path / "project"), example_blocks()
    write_schema, test, train = commands(examples)
    apply(examples, project)
    run(write_schema, project)
    *program, labels_and_learning, schema = test
    assert "2 passed" in run([*program, labels_and_learning], project).stdout
    assert "passed" in run([*program, schema], project).stdout
    run(["python", "-m", "pytest", "tests/test_imports.py"], project)
    # The page's line, on a small model and dataset.
    overrides = [flag for flag in train if "objectives" in flag]
    assert overrides == ['pretraining_setting.objectives=["mlm", "first_character"]']
    (tmp_path / "config.json").write_text(json.dumps(small_data()))
    line = [*train[:2], "--model", str(tmp_path), "--dataset", str(dataset_folder), "--set", *overrides]
    said = run(line, project)
    assert "first_character_accuracy" in said.stderr, shlex.join(line)
    scores = run(["python", "code/run_validation.py", *line[2:]], project)
    assert "first_character_accuracy" in scores.stdout
