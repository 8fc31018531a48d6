"""The record of a run: what was written is read again, and it alone is read."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from records import a_run
from small import ROOT

from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.runs.record import find_runs, open_run, read_run


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    run = a_run(tmp_path, (0.8, 0.9), test_metrics={"accuracy": 0.7}, texts={"text": ["a"]}, warnings=("few rows",))
    run.write()
    assert read_run(tmp_path) == open_run(tmp_path) == run
    assert (run.best.epoch, run.tested_epoch, run.test_metrics) == (1, 1, {"accuracy": 0.7})


def test_finished_and_unfinished_runs_are_found(tmp_path: Path) -> None:
    for name, kind in (("glue/SST-2/b", "glue"), ("glue/SST-2/a", "glue"), ("imdb/c", "imdb")):
        (tmp_path / name).mkdir(parents=True)
        a_run(tmp_path / name, kind=kind).write()
    (tmp_path / "wikihop" / "d").mkdir(parents=True)
    replace(a_run(tmp_path / "wikihop" / "d"), epochs=()).write()
    assert [run.folder.name for run in find_runs(tmp_path)] == ["a", "b", "c"]
    assert [run.folder.name for run in find_runs(tmp_path, "imdb")] == ["c"]


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    with pytest.raises(UserError, match=r"--run .*: expected the folder of a finished fine-tuning run"):
        open_run(tmp_path, f"--run {tmp_path}")


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    a_run(tmp_path).write()
    path = tmp_path / "run.json"
    written = read_checked(path)
    write_checked(path, written | {"format": 2})
    with pytest.raises(UserError, match=r"run\.json: .*made by an earlier version: format 2, this one reads 5"):
        read_run(tmp_path)
    path.write_text(json.dumps(written))
    with pytest.raises(UserError, match=r"run\.json: .*made by an earlier version: it has no sha256"):
        read_run(tmp_path)


def test_the_tokenizer_is_the_runs_own(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path), tokenizer_sha256="0" * 64)
    with pytest.raises(UserError, match=r"tokenizer\.json: expected the tokenizer of the run .*, found none"):
        _ = run.tokenizer
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="found another one"):
        _ = run.tokenizer


READ_BY_NAME = re.compile(r"(^|/)result\\.json$")
PARSES = ("partition", "rpartition", "split", "removeprefix", "startswith")


def test_records_are_read_in_one_place_and_nothing_that_they_say_is_parsed() -> None:
    """Facts have fields: `Run.choices` in the place of a task's name."""
    wrong = []
    for path in sorted((ROOT / "code").rglob("*.py")):
        if path.parent.name == "runs":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_file = isinstance(node, ast.Constant) and isinstance(node.value, str) and READ_BY_NAME.search(node.value)
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) and node.attr in PARSES else ""
            if is_file or owner.endswith((".task", ".command")):
                wrong.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert not wrong
