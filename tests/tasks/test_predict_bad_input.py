"""What run_predict.py refuses: one message, exit status 2, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finetuning import made_rows, write_table
from small import run_here

from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.runs.store import Store
from nystromformer.tasks.prediction import stream
from nystromformer.training.archive import read_checkpoint, write_checkpoint

SCRIPT = "code/run_predict.py"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    top = finished.parents[3]
    shutil.copytree(top, tmp_path / "experiment")
    return tmp_path / "experiment" / finished.relative_to(top)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "in.csv", ("sentence", "key"), made_rows(6))


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    def check(*flags: object, out: str = "out.csv") -> str:
        before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
        capsys.readouterr()
        assert run_here(monkeypatch, SCRIPT, *flags, "--out", tmp_path / out, "--device", "cpu") == 2
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
        said = capsys.readouterr().err
        assert said.lower().count("error:") == 1
        assert "Traceback" not in said
        return said

    return check


def test_folders_that_are_no_run(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    assert "expected the folder of a finished fine-tuning run, with result.json" in refused(tmp_path, "--input", table)
    path = run / "result.json"
    written = read_checked(path)
    path.write_text(json.dumps(written))
    assert "made by an earlier version: it has no sha256" in refused(run, "--input", table)
    write_checked(path, written | {"texts": None})
    said = refused(run, "--input", table)
    assert "expected a run of run_classify.py, run_glue.py or run_imdb.py, found another" in said
    path.write_text("{")
    assert f"{path}: " in refused(run, "--input", table)


def test_a_run_without_weights_or_tokenizer(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    tokenizer = run / "tokenizer"
    tokenizer.rename(tmp_path / "elsewhere")
    said = refused(run, "--input", table)
    assert "tokenizer.json: expected the tokenizer of the run" in said
    assert "start the run's command again, which writes it again" in said
    (tmp_path / "elsewhere").rename(tokenizer)
    (path,) = run.glob("*.model")
    path.unlink()
    assert "cp-0000.model: " in refused(run, "--input", table)


def test_columns(refused: Refused, run: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "in.csv", ("body", "key"), made_rows(6))
    said = refused(run, "--input", table)
    assert "expected the columns of its texts (sentence), found no sentence; it has" in said
    assert "body, key: name others with --text" in said
    assert "found no review; it has the columns body, key" in refused(run, "--input", table, "--text", "review")
    assert "expected 1 of the columns" in refused(run, "--input", table, "--text", "body,key")
    assert "--id title: expected columns" in refused(run, "--input", table, "--text", "body", "--id", "title")
    assert "expected one column, found 2" in refused(run, "--input", table, "--text", "body", "--id", "key,body")


def test_tables(refused: Refused, run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW_ROWS", 4)
    assert "nowhere.csv: no such file" in refused(run, "--input", tmp_path / "nowhere.csv")
    write_table(table, ("sentence",), [("a",), ("",), ("b",), ("c",), ("",), (" ",)])
    assert "3 of 6 texts are empty, the first of them in row 2" in refused(run, "--input", table)
    write_table(table, ("sentence",), [])
    assert "expected rows to predict, found none" in refused(run, "--input", table)
    table.write_bytes(b"sentence\n" + b"a text\n" * 9 + "caf\u00e9\n".encode("latin-1"))
    assert "row 10, sentence: expected text in utf-8" in refused(run, "--input", table)
    table.write_bytes(b"sentence\n" + b"a text\n" * 9 + b'"and so')
    assert "row 10: it ends within quotes" in refused(run, "--input", table)


def test_where_to_write(
    refused: Refused, run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "expected a file that ends in .csv, .tsv, .jsonl, .parquet, found .txt" in refused(
        run, "--input", table, out="out.txt"
    )
    assert "no does not exist" in refused(run, "--input", table, out="no/out.csv")
    (tmp_path / "out.csv").touch()
    assert "out.csv: is there already: remove it, or name another file" in refused(run, "--input", table)


@pytest.fixture
def parts(run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All parts of a prediction that was interrupted before its file was written; `whole.csv` is what becomes of it."""
    monkeypatch.setattr(stream, "WINDOW_ROWS", 4)
    assert predict(run, table, tmp_path / "whole.csv", monkeypatch) == 0
    with monkeypatch.context() as context:
        context.setattr(Store, "publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert predict(run, table, tmp_path / "out.csv", context) == 130
    return tmp_path / "out.csv.parts"


def predict(run: Path, table: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    return run_here(monkeypatch, SCRIPT, run, "--input", table, "--device", "cpu", "--out", out)


@pytest.mark.parametrize("damage", ["a bit", "cut"])
def test_a_damaged_part_is_computed_again(
    run: Path,
    table: Path,
    parts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    path = parts / "00000001"
    content = path.read_bytes()
    path.write_bytes(content[:-80] + bytes([content[-80] ^ 1]) + content[-79:] if damage == "a bit" else content[:-64])
    assert predict(run, table, tmp_path / "out.csv", monkeypatch) == 0
    assert f"{path}: damaged" in caplog.text
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize("other", ["weights", "table", "text", "id"])
def test_parts_of_another_prediction_are_refused(
    refused: Refused, run: Path, table: Path, parts: Path, other: str
) -> None:
    flags: tuple[object, ...] = ()
    if other == "weights":
        (path,) = run.glob("*.model")
        content = read_checkpoint(path)
        next(iter(content["model"].values())).mul_(1.01)
        write_checkpoint(content, path)
    elif other == "table":
        write_table(table, ("sentence", "key"), made_rows(6, 1))
    else:
        flags = (f"--{other}", "key")
    said = refused(run, "--input", table, *flags)
    assert "holds finished parts that were computed with other " in said
    assert other in said.partition(" with other ")[2].partition(";")[0]
    assert f"out.csv.parts to start again with {table}, or name another file with --out" in said


def test_two_commands_on_one_output(
    run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one is refused, and so is a folder of somebody's with the parts' name."""
    opened, statuses = stream.output_kind, []

    def twice(out: Path) -> Any:
        with monkeypatch.context() as context:
            context.setattr(stream, "output_kind", opened)
            file = opened(out)
            return lambda *args: (statuses.append(predict(run, table, out, context)), file(*args))[1]

    with monkeypatch.context() as context:
        context.setattr(stream, "output_kind", twice)
        assert predict(run, table, tmp_path / "out.csv", context) == 0
    assert statuses == [2]
    assert "out.csv.parts: another command is using it" in capsys.readouterr().err
    (tmp_path / "new.csv.parts").mkdir()
    (tmp_path / "new.csv.parts" / "thesis.txt").write_text("a thesis")
    assert predict(run, table, tmp_path / "new.csv", monkeypatch) == 2
    assert "new.csv.parts: expected a folder" in capsys.readouterr().err
    assert (tmp_path / "new.csv.parts" / "thesis.txt").read_text() == "a thesis"


def test_a_table_of_many_columns(refused: Refused, run: Path, table: Path) -> None:
    table.write_text(",".join(f"column{number}" for number in range(10_000)) + "\n" + "," * 9_999 + "\n")
    said = refused(run, "--input", table, "--text", "body")
    assert "column9 and 9,990 more" in said
    assert len(said) < 1000
