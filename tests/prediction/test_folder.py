"""A folder of Parquet files: a part for each, whole after any kill, one error for what is wrong."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from finetuning import made_rows
from pyarrow import parquet
from small import contents

import nystromformer
from nystromformer.files.writing import sha256_of
from nystromformer.prediction import predict as command
from nystromformer.prediction import tables

SIZES = {"part-00000.parquet": 9, "part-00001.parquet": 0, "part-00002.parquet": 20}


def write_part(path: Path, texts: list[Any], first: int = 0, **columns: Any) -> None:
    keys = [f"k{first + number}" for number in range(len(texts))]
    table = {"key": pa.array(keys, pa.string()), "sentence": pa.array(texts, columns.pop("type", pa.string()))}
    parquet.write_table(pa.table(table | columns), path)


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    """With what Spark leaves beside its files."""
    path = tmp_path / "in"
    path.mkdir()
    texts = [text for text, _ in made_rows(29)]
    start = 0
    for name, size in SIZES.items():
        write_part(path / name, texts[start : start + size], start)
        start += size
    (path / "_SUCCESS").touch()
    (path / "_metadata.parquet").write_text("bookkeeping")
    (path / ".hidden.parquet").write_text("bookkeeping")
    return path


Predict = Callable[..., int]


@pytest.fixture
def predict(predict: Predict, finished: Path, source_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """The same by flags and the name of the output."""
    monkeypatch.setattr(tables, "WINDOW_ROWS", 8)
    return lambda *flags, out="out": predict(finished, source_folder, *flags, out=out)


def test_each_part_is_predicted_into_one_of_its_name(
    predict: Predict, finished: Path, source_folder: Path, tmp_path: Path
) -> None:
    """As Predictor predicts all of the rows at once."""
    assert predict("--id", "key") == 0
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == ["_manifest.json", *SIZES]
    found = [parquet.read_table(out / name) for name in SIZES]
    given = [parquet.read_table(source_folder / name) for name in SIZES]
    assert [len(table) for table in found] == list(SIZES.values())
    assert len({table.schema for table in found}) == 1, "a part without rows has the columns of the others"
    rows, texts = parquet.read_table(out), pa.concat_tables(given)
    assert rows["id"].to_pylist() == texts["key"].to_pylist()
    expected = nystromformer.Predictor(finished, "cpu")(texts["sentence"].to_pylist())
    assert rows.column_names == ["id", *expected]
    for name, cells in expected.items():
        wanted = np.asarray(cells).tolist()
        assert rows[name].to_pylist() == (wanted if name == "prediction" else pytest.approx(wanted, abs=1e-6)), name
    manifest = json.loads((out / "_manifest.json").read_text())
    assert manifest["rows"] == sum(SIZES.values())
    assert manifest["columns"][:2] == ["id", "prediction"]
    for part, (name, size), table in zip(manifest["parts"], SIZES.items(), found, strict=True):
        assert (part["name"], part["rows"], part["cut"]) == (name, size, sum(table["cut"].to_pylist()))
        assert (part["bytes"], part["sha256"]) == ((out / name).stat().st_size, sha256_of(out / name))


@pytest.fixture
def half_done(predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an interrupted prediction whose parts are all there; `whole` is what becomes of it."""
    assert predict(out="whole") == 0
    with monkeypatch.context() as context:
        context.setattr(command, "write_json", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert predict() == 130
    return tmp_path / "out"


@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "its record"])
def test_a_damaged_part_is_computed_again(
    half_done: Path, predict: Predict, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = half_done / "part-00002.parquet"
    content = path.read_bytes()
    record = half_done / "parts" / "part-00002.parquet.part.json"
    if damage == "gone":
        path.unlink()
    elif damage == "its record":
        record.write_bytes(record.read_bytes()[:-9])
    else:
        path.write_bytes(content[:-1] + (b"x" if damage == "a bit" else b""))
    assert predict() == 0
    (said,) = [line for line in caplog.messages if "made again" in line]
    assert said.startswith(f"{record if damage == 'its record' else path}: ")
    assert contents(half_done) == contents(tmp_path / "whole")


Refused = Callable[..., str]


def test_where_to_write(refused: Refused, predict: Predict, half_done: Path, source_folder: Path) -> None:
    """The folder of another run, of other input, of a finished prediction, and one of somebody's."""
    assert "parts: made from something else:\n  embed: found False, expected True" in refused("--embed")
    assert "\n  text: found ['sentence'], expected ['key']" in refused("--text", "key")
    write_part(source_folder / "part-00003.parquet", ["one more"])
    assert "\n  input: found " in refused()
    (source_folder / "part-00003.parquet").unlink()
    assert "whole: is there already: name a new folder" in refused(out="whole")
    assert "x.csv: expected a folder, as --input" in refused(out="x.csv")


def test_a_strangers_file_stays(half_done: Path, predict: Predict, capsys: pytest.CaptureFixture[str]) -> None:
    (half_done / "parts" / "part-00000.parquet.part.json").unlink()
    (half_done / "part-00000.parquet").write_text("a thesis")
    assert predict() == 2
    assert "part-00000.parquet: is there already, and this command did not write it" in capsys.readouterr().err
    assert (half_done / "part-00000.parquet").read_text() == "a thesis"


def test_files_that_differ(refused: Refused, source_folder: Path) -> None:
    path = source_folder / "part-00003.parquet"
    write_part(path, [1], type=pa.int64())
    said = refused()
    assert "part-00003.parquet: expected the columns of part-00000.parquet (sentence: string), found" in said
    assert "sentence: int64" in said
    parquet.write_table(pa.table({"body": ["a"]}), path)
    assert "found none of them" in refused()
    path.write_text("no Parquet")
    assert "part-00003.parquet: expected a Parquet file" in refused()
    path.unlink()
    assert "expected 1 of the columns" in refused("--text", "key,sentence")
    write_part(source_folder / "part-00000.parquet", [""])
    assert "part-00000.parquet, row 1: the text is empty" in refused()


def test_a_text_that_is_empty(predict: Predict, tmp_path: Path, source_folder: Path, refused: Refused) -> None:
    """What was finished before it stays."""
    write_part(source_folder / "part-00003.parquet", ["a text", None])
    assert predict() == 2
    assert sorted(os.listdir(tmp_path / "out")) == [*SIZES, "parts"]
    assert "part-00003.parquet, row 2: the text is empty: fill it in, or remove such rows" in refused()


def test_flags_that_say_nothing(refused: Refused, tmp_path: Path) -> None:
    flags = ("--input", tmp_path / "in.csv", "--engine", "ray")
    assert "--engine ray: expected --input to be a folder of Parquet files" in refused(*flags)
    assert "--array_index and --array_size: expected both or none" in refused("--array_index", 1)
    assert "expected 0 to 2 with --array_size 3, found 3" in refused("--array_index", 3, "--array_size", 3)


def test_slices_and_what_finishes_them(predict: Predict, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As jobs of an array, in any order, one of them twice and one never."""
    assert predict(out="whole") == 0
    caplog.set_level("INFO")
    for index in (2, 0, 0):
        assert predict("--array_index", index, "--array_size", 3) == 0
        assert "predictions: 1 part of 3 in" in caplog.messages[-1]
    assert sorted(os.listdir(tmp_path / "out")) == ["part-00000.parquet", "part-00002.parquet", "parts"]
    assert predict() == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
