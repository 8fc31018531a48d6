"""The rows of a table as texts and labels; which are refused, and which may be left out."""

from dataclasses import replace
from pathlib import Path

import pytest
from finetuning import write_table

from nystromformer.errors import UserError
from nystromformer.tabular.table import open_table
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.source import read_rows

QUESTION = Question("t.csv", "body", "label")


@pytest.mark.parametrize("nothing", ["", None])
def test_a_test_table_with_an_empty_column_of_labels_has_none(tmp_path: Path, nothing: str | None) -> None:
    path = write_table(tmp_path / "t.jsonl", ("body", "label"), [("a", nothing), ("b", nothing)])
    assert read_rows(open_table(path), QUESTION, ",", labelled=False).labels is None
    assert read_rows(open_table(path), QUESTION, ",").labels is not None
    write_table(path, ("body", "label"), [("a", nothing), ("b", "x")])
    assert read_rows(open_table(path), QUESTION, ",", labelled=False).labels is not None


@pytest.mark.parametrize("flag", ["group", "time"])
def test_a_row_without_a_group_or_a_time(tmp_path: Path, flag: str) -> None:
    table = open_table(write_table(tmp_path / "t.csv", ("body", "label", "when"), [("a", 1, 1), ("b", 2, " ")]))
    with pytest.raises(UserError, match=rf"--{flag}: .*t\.csv, row 2: expected a value, found an empty cell"):
        read_rows(table, replace(QUESTION, **{flag: "when"}), ",", divided=True)  # type: ignore[arg-type]


def test_empty_texts_are_counted(tmp_path: Path) -> None:
    rows = [("a", "x"), ("", "y"), (" \t", "x"), ("b", "y")]
    table = open_table(write_table(tmp_path / "t.csv", ("body", "label"), rows))
    with pytest.raises(
        UserError, match=r"2 of 4 rows have no text, the first of them row 2: fill it in, or add --skip_empty"
    ):
        read_rows(table, QUESTION, ",")
    read = read_rows(table, replace(QUESTION, skip_empty=True), ",")
    assert (read.texts, read.ids, read.left_out) == ([("a",), ("b",)], ["1", "4"], 2)
    assert read.labels is not None
    assert list(read.labels.rows) == [1, 4]
