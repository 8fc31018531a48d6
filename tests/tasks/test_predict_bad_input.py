"""What run_predict.py refuses: one message, exit status 2, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from finetuning import made_rows, write_table
from small import run_here

from nystromformer.tasks.prediction import stream

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
    written = json.loads(path.read_text())
    del written["sha256"]  # else it would tell
    path.write_text(json.dumps(written | {"texts": None}))
    said = refused(run, "--input", table)
    assert "expected a run of run_classify.py, run_glue.py or run_imdb.py, found another" in said
    path.write_text(json.dumps(written | {"texts": {}}))
    assert "expected a run's description of its texts" in refused(run, "--input", table)
    path.write_text(json.dumps(written | {"format": 2}))
    assert "result format 2, this version reads format" in refused(run, "--input", table)
    (run / "result.json").write_text("{")
    assert "expected the result of a fine-tuning run" in refused(run, "--input", table)


def test_a_run_without_weights_or_tokenizer(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    tokenizer = run / "tokenizer"
    tokenizer.rename(tmp_path / "elsewhere")
    said = refused(run, "--input", table)
    assert "tokenizer.json: expected the tokenizer of the run" in said
    assert "start the run's command again, which writes it again" in said
    (tmp_path / "elsewhere").rename(tokenizer)
    (path,) = run.glob("*.model")
    path.unlink()
    said = refused(run, "--input", table)
    assert "cp-0000.model: no such weights: put them back" in said


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


def test_another_prediction_is_half_done(
    refused: Refused, run: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(stream, "_compute", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        flags = (run, "--input", table, "--device", "cpu", "--out", tmp_path / "out.csv")
        assert run_here(context, SCRIPT, *flags) == 130
    said = refused(run, "--input", table, "--tokens_at_a_time", 100)
    assert (
        "out.csv.parts: holds finished parts that were computed with other tokens_at_a_time; they were left as they are"
        in said
    )
    assert f"out.csv.parts to start again with {table}, or name another file with --out" in said
    write_table(table, ("sentence", "key"), made_rows(6, 1))
    assert "finished parts that were computed with other table" in refused(run, "--input", table)
    (tmp_path / "out.csv.parts" / "mark").write_text("{")
    assert "mark: damaged, or not of this command" in refused(run, "--input", table)
