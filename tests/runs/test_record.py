"""The record of a run: what was written is read again, and it alone is read."""

from dataclasses import replace
from pathlib import Path

import pytest
from records import a_run

from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import find_runs, open_run, read_run


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    told = {"texts": {"text": ["a"]}, "warnings": ("few rows",), "baselines": {"one": {"accuracy": Spread(0.5, None)}}}
    run = a_run(tmp_path, (0.8, 0.9), test_metrics={"accuracy": 0.7}, **told)
    run.write()
    assert read_run(tmp_path) == open_run(tmp_path) == run
    assert (run.best.epoch, run.tested_epoch, run.test_metrics) == (1, 1, {"accuracy": 0.7})


def test_finished_runs_are_found(tmp_path: Path) -> None:
    for name, kind in (("glue/SST-2/b", "glue"), ("glue/SST-2/a", "glue"), ("imdb/c", "imdb")):
        (tmp_path / name).mkdir(parents=True)
        a_run(tmp_path / name, kind=kind).write()
    (tmp_path / "wikihop" / "d").mkdir(parents=True)
    replace(a_run(tmp_path / "wikihop" / "d"), epochs=()).write()
    assert [run.folder.name for run in find_runs(tmp_path)] == ["a", "b", "c"]


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert read_run(tmp_path) is None
    with pytest.raises(UserError, match=r": expected the folder of a finished fine-tuning run"):
        open_run(tmp_path)


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    a_run(tmp_path).write()
    path = tmp_path / "run.json"
    write_checked(path, read_checked(path) | {"format_version": 2})
    with pytest.raises(UserError, match=r"run\.json: made by an earlier version: its format is 2, this one reads 7"):
        read_run(tmp_path)


def test_the_tokenizer_is_the_runs_own(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path), tokenizer_sha256="0" * 64)
    with pytest.raises(UserError, match=r"tokenizer\.json: expected the tokenizer of the run .*, found none"):
        _ = run.tokenizer
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="found another one"):
        _ = run.tokenizer
