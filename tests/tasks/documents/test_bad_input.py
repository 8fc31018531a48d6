"""What run_classify.py refuses: one message, exit status 2, nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finetuning import made_rows, write_table
from small import run_here

from nystromformer.tasks.experiment.folder import Experiment

SCRIPT = "code/run_classify.py"
COLUMNS = ("body", "label", "day", "author")
ROWS: list[tuple[Any, ...]] = [
    (text, label, f"2026-01-{number + 1:02d}", number // 10) for number, (text, label) in enumerate(made_rows(20))
]
Refused = Callable[..., str]


@pytest.fixture
def refused(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    def check(train: Path, *flags: object, text: str = "body", label: str = "label") -> str:
        before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
        capsys.readouterr()
        where = ("--model", experiment.folder, "--train", train, "--text", text, "--label", label, "--device", "cpu")
        assert run_here(monkeypatch, SCRIPT, *where, *flags) == 2
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
        said = capsys.readouterr().err
        assert said.lower().count("error:") == 1
        assert "Traceback" not in said
        return said

    return check


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "reviews.csv", COLUMNS, ROWS)


def changed(table: Path, **cells: Any) -> Path:
    """The table with some columns' cells replaced by those of a function of the row's number."""
    rows = [
        tuple(cells[name](number) if name in cells else cell for name, cell in zip(COLUMNS, row, strict=True))
        for number, row in enumerate(ROWS)
    ]
    return write_table(table.with_name("changed.csv"), COLUMNS, rows)


def test_columns(refused: Refused, table: Path) -> None:
    said = refused(table, text="review")
    assert "--text review: expected columns of" in said
    assert "found no review; it has the columns body, label, day, author" in said
    assert "--label stars" in refused(table, label="stars")
    assert "expected one column or two, found 3" in refused(table, text="body,day,author")
    assert "--label body: expected another column than --text" in refused(table, label="body")
    for flag in ("--group", "--time", "--id"):
        assert f"{flag} nothing: expected columns of" in refused(table, flag, "nothing")


def test_texts_and_labels(refused: Refused, table: Path) -> None:
    said = refused(changed(table, body=lambda number: "" if number % 5 == 3 else "text"))
    assert "4 of 20 texts are empty, the first of them in row 4" in said
    assert "found 'same' in every row" in refused(changed(table, label=lambda number: "same"))
    said = refused(changed(table, label=lambda number: "" if number > 16 else number % 2))
    assert "expected a label in each row of label, found none in 3 of 20 rows, the first of them row 18" in said
    said = refused(changed(table, label=lambda number: "low" if number else "1"), "--kind", "value")
    assert "row 2: expected a number (--kind value), found 'low'" in said
    write_table(
        table.with_suffix(".jsonl"), COLUMNS, [(text, {"is": label}, day, who) for text, label, day, who in ROWS]
    )
    assert "row 1: expected a label that is a number or text, found an object" in refused(table.with_suffix(".jsonl"))


def test_labels_that_training_has_not(refused: Refused, table: Path) -> None:
    other = changed(table, label=lambda number: "maybe" if number == 6 else "yes")
    for flag in ("--test", "--validation"):
        said = refused(table, flag, other)
        assert "changed.csv: expected labels that the training table has (no, yes), found others:" in said
        assert "'maybe' in 1 row, first in row 7" in said


def test_files(refused: Refused, table: Path, tmp_path: Path) -> None:
    assert "nowhere.csv: no such file" in refused(tmp_path / "nowhere.csv")
    content = table.read_bytes()
    mixed = tmp_path / "mixed.csv"
    mixed.write_bytes(content + "d\u00e9j\u00e0,yes,2026-02-01,1\r\n".encode("latin-1"))
    assert "mixed.csv, row 21: expected UTF-8 as in the rest of the file, found the byte 0xe9" in refused(mixed)
    mixed.write_bytes(content + b"a text,ye")
    assert "row 21: expected 4 cells, found 2: the file ends early" in refused(mixed)
    assert "hub:nobody/nothing: cannot be loaded from the hub" in refused("hub:nobody/nothing")  # type: ignore[arg-type]


def test_divisions(refused: Refused, table: Path) -> None:
    assert "--folds 21: reviews train has 20 rows: a fold would have none" in refused(table, "--folds", 21)
    said = refused(table, "--folds", 3, "--group", "author")
    assert "--folds 3: --group has 2 groups, so that a fold would have no rows" in said
    said = refused(changed(table, author=lambda number: "one"), "--group", "author")
    assert "expected two groups or more, found one in every row" in said
    assert "row 3: expected a value, found an empty cell" in refused(
        changed(table, author=lambda number: "" if number == 2 else number), "--group", "author"
    )
    assert "expected a number or a date such as 2026-01-31, found 'no'" in refused(table, "--time", "label")
    assert "--validation 2: expected a table, or a share between 0 and 1" in refused(table, "--validation", 2)


def test_flags(refused: Refused, table: Path) -> None:
    assert "--kind stars: expected one of classes, several, value, ordered" in refused(table, "--kind", "stars")
    assert "--cut middle: expected one of head, head_and_tail, windows" in refused(table, "--cut", "middle")
    assert "--class_weights: expected classes of no, yes, found maybe" in refused(table, "--class_weights", "maybe=2")
    said = refused(changed(table, label=lambda number: number / 7), "--class_weights", "balanced")
    assert "--class_weights: expected classes, found values" in said
    assert "expected --from_scratch beside it" in refused(table, "--vocab_size", 300)
    assert "--from_scratch: expected no --checkpoint" in refused(table, "--from_scratch", "--checkpoint", 1)
    said = refused(table, "--cut", "windows", "--overlap", 30)
    assert "--overlap 30: expected windows of --length 32 to go on by 4 tokens at least" in said
    assert "--task a/b" in refused(table, "--task", "a/b")
    assert "--folds 3: expected no --validation beside it, found 0.2" in refused(
        table, "--folds", 3, "--validation", 0.2
    )
    assert "--time day: expected no --split_seed" in refused(table, "--time", "day", "--split_seed", 1)
    assert "--validation v.csv: expected no --split_seed" in refused(table, "--validation", "v.csv", "--split_seed", 1)
    assert "--separator ';': expected --kind several beside it" in refused(table, "--separator", ";")
