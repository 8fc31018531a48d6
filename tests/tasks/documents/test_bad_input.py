"""What run_classify.py refuses: one message, exit status 2, nothing written."""

from pathlib import Path
from typing import Any

import pytest
from finetuning import made_rows, write_table
from small import run_here

from nystromformer.tasks.experiment.folder import Experiment

SCRIPT = "code/run_classify.py"
COLUMNS = ("body", "label", "day", "author", "number", "other")
ROWS: list[tuple[Any, ...]] = [
    (text, label, f"2026-01-{number + 1:02d}", number // 10, number / 7, "maybe" if number == 6 else "yes")
    for number, (text, label) in enumerate(made_rows(20))
]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--text body,day,author", "--text body,day,author: expected one column or two, found 3"),
        ("--label body", "--label body: expected another column than --text, found body"),
        ("--group nothing", "found no nothing; it has the columns body, label, day"),
        ("--time nothing", "--time nothing: expected columns of"),
        ("--validation other.csv", "'maybe' in 1 row, first in row 7"),
        ("--class_weights maybe=2", "--class_weights: expected classes of no, yes, found maybe"),
        ("--label number --class_weights balanced", "--class_weights: expected classes, found values"),
        ("--validation nothing.csv", "nothing.csv: expected rows with text, found none"),
    ],
)
def test_one_message_and_nothing_written(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: str,
    said: str,
) -> None:
    write_table(tmp_path / "reviews.csv", COLUMNS, ROWS)
    write_table(tmp_path / "other.csv", ("body", "label"), [(row[0], row[-1]) for row in ROWS])
    write_table(tmp_path / "nothing.csv", ("body", "label"), [])
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    where = ("--model", experiment.folder, "--device", "cpu")
    usual = {"--train": "reviews.csv", "--text": "body", "--label": "label"}
    what = [word for flag, value in usual.items() if flag not in flags for word in (flag, value)]
    assert run_here(monkeypatch, SCRIPT, *where, *what, *flags.split()) == 2
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
    message = capsys.readouterr().err
    assert message.lower().count("error:") == 1
    assert "Traceback" not in message
    assert said in " ".join(message.split())
