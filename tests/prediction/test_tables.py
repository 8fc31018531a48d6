"""run_predict.py on a table: the run's own predictions again, in bounded memory, the same bytes after any interruption;
and what it refuses, with one message, exit status 2 and nothing written.
"""

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dying import Killed, dying_at
from finetuning import made_rows, write_table
from pyarrow import parquet
from small import contents

from nystromformer.files import parts
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.files.parts import Parts
from nystromformer.files.writing import NewFile
from nystromformer.prediction import predictor as opening
from nystromformer.prediction import tables
from nystromformer.prediction.predictor import Network, Predictor
from nystromformer.tabular.table import Table, open_table
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint

Folders = Callable[[str], Path]
Predict = Callable[..., int]
Refused = Callable[..., str]


def rows_of(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


@pytest.mark.parametrize("name", ["classes", "several", "value", "ordered"])
def test_a_run_on_a_table_predicts_as_it_did(
    folders: Folders, predict: Predict, top: Path, tmp_path: Path, name: str
) -> None:
    assert predict(folders(name), top / f"{name}.csv") == 0
    found, expected = rows_of(tmp_path / "out.csv"), rows_of(folders(name) / "predictions" / "test.tsv", "\t")
    assert [row["id"] for row in found] == [row["id"] for row in expected]
    columns = [column for column in found[0] if column.startswith("p_")]
    assert columns == [column for column in expected[0] if column.startswith("p_")]
    for mine, his in zip(found, expected, strict=True):
        for column in columns if name != "value" else ["prediction"]:
            assert float(mine[column]) == pytest.approx(float(his[column]), abs=2e-5)
    if name != "value":
        same = [mine["prediction"] == his["prediction"] for mine, his in zip(found, expected, strict=True)]
        assert sum(same) >= len(same) - 1
    assert os.listdir(tmp_path) == ["out.csv"], "nothing is left beside it"


@pytest.mark.parametrize("name", ["classes", "several", "value", "--embed"])
def test_every_format_says_the_same(folders: Folders, predict: Predict, tmp_path: Path, name: str) -> None:
    rows = [(f"k{number}", text) for number, (text, _) in enumerate(made_rows(9))]
    table = write_table(tmp_path / "in.jsonl", ("key", "body"), rows)
    run, more = (folders("classes"), (name,)) if name.startswith("--") else (folders(name), ())
    for ending in ("csv", "tsv", "parquet"):
        assert predict(run, table, "--id", "key", *more, out=f"out.{ending}") == 0
    first = rows_of(tmp_path / "out.csv")
    assert [row["id"] for row in first] == [f"k{number}" for number in range(9)]
    assert rows_of(tmp_path / "out.tsv", "\t") == first
    for row, column in zip(first, parquet.read_table(tmp_path / "out.parquet").to_pylist(), strict=True):
        if name == "--embed":
            vector = [float(row[f"v_{number}"]) for number in range(len(row) - 1)]
            assert vector == pytest.approx(column["vector"], rel=1e-5)
            continue
        spelt = row["prediction"]
        if name == "value":
            assert column["prediction"] == pytest.approx(float(spelt), rel=1e-5)
            continue
        assert column["prediction"] == ((spelt.split(";") if spelt else []) if name == "several" else spelt)
        for label in [label for label in column if label.startswith("p_")]:
            assert float(row[label]) == pytest.approx(column[label], abs=1e-6)


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*args: object, **more: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("ending", "left"), [(".csv", (3, 3, 3, 2, 2, 1, 1, 0, 0, 0, 0)), ("", (3, 3, 3, 2, 2, 1, 1, 0, 2, 0))]
)
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    folders: Folders,
    predict: Predict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    left: tuple[int, ...],
) -> None:
    """A table of three windows, and a folder of three files; `left`: how many of them are still to be scored."""
    monkeypatch.setattr(tables, "WINDOW_ROWS", 12)
    rows = made_rows_of_texts(36)
    for number in range(3):
        write_table(tmp_path / "in" / f"{number}.parquet", ("body",), rows[12 * number : 12 * number + 12])
    given = folders("classes"), write_table(tmp_path / "in.csv", ("body",), rows).with_suffix(ending)
    assert predict(*given, out=f"whole{ending}") == 0
    scored: list[int] = []
    scores = Network.scores
    monkeypatch.setattr(
        Network, "scores", lambda *args, **more: (scored.append(len(args[1])), scores(*args, **more))[1]
    )
    # At the mark; of each window the scores and their record, of each file itself and its record; the output and its
    # record, or the manifest; then when a file has its name, and at the end.
    moments = [(NewFile, "__exit__", dying_at(kill)) for kill in range(1, len(left) - 1)]
    moments += [(parts, "sync_folder", raising(Killed())), (Parts, "remove", raising(Killed()))]
    for number, (moment, expected) in enumerate(zip(moments, left, strict=True), start=1):
        out = tmp_path / f"killed-{number}{ending}"
        with monkeypatch.context() as context:
            context.setattr(*moment)
            with pytest.raises(Killed):
                predict(*given, out=out.name)
        assert not ending or out.exists() == (number >= 10)
        scored.clear()
        assert predict(*given, out=out.name) == 0
        read = Path.read_bytes if ending else contents
        assert read(out) == read(tmp_path / f"whole{ending}")
        assert len(scored) == expected, "what was scored is not scored again"
        assert not out.with_name(f"{out.name}.parts").exists()


def test_weights_are_read_once_and_rows_before_the_work(
    folders: Folders, predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    rows, checkpoint = Table.rows, opening.read_checkpoint
    monkeypatch.setattr(Table, "rows", lambda *args: (read.append("table"), rows(*args))[1])
    monkeypatch.setattr(opening, "read_checkpoint", lambda path: (read.append("weights"), checkpoint(path))[1])
    assert predict(folders("classes"), write_table(tmp_path / "in.csv", ("body",), made_rows_of_texts(12))) == 0
    assert read == ["weights", "table", "table"]
    assert [row["id"] for row in rows_of(tmp_path / "out.csv")] == [str(number) for number in range(1, 13)]


def made_rows_of_texts(count: int) -> list[tuple[str]]:
    return [(text,) for text, _ in made_rows(count, most=60)]


def test_windows_end_by_rows_or_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "WINDOW_ROWS", 4)
    monkeypatch.setattr(tables, "WINDOW_CHARACTERS", 20)
    rows = [("x" * size,) for size in (1, 1, 1, 1, 30, 10, 10, 5, 1)]
    table = open_table(write_table(tmp_path / "in.csv", ("body",), rows))
    job = tables.Job(Predictor("nowhere"), ("body",), None)
    found = [window.ids for window in job.windows(table)]
    assert found == [["1", "2", "3", "4"], ["5"], ["6", "7"], ["8", "9"]]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    top = finished.parents[3]
    shutil.copytree(top, tmp_path / "experiment")
    return tmp_path / "experiment" / finished.relative_to(top)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "in.csv", ("sentence", "key"), made_rows(6))


def test_folders_that_are_no_run(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    assert "expected the folder of a finished fine-tuning run, with run.json" in refused(tmp_path, table)
    path = run / "run.json"
    written = read_checked(path)
    write_checked(path, written | {"texts": None})
    said = refused(run, table)
    assert "expected a run of run_classify.py, run_glue.py or run_imdb.py, found another" in said
    path.write_text("{")
    assert f"{path}: " in refused(run, table)


def test_columns(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "in.csv", ("body", "key"), made_rows(6))
    said = refused(run, table)
    assert "expected the columns of its texts (sentence), found no sentence; it has" in said
    assert "body, key: name others with --text" in said
    assert "found no review; it has the columns body, key" in refused(run, table, "--text", "review")
    assert "expected 1 of the columns" in refused(run, table, "--text", "body,key")
    assert "--id title: expected columns" in refused(run, table, "--text", "body", "--id", "title")
    assert "--id key,body: expected one column, found 2" in refused(run, table, "--text", "body", "--id", "key,body")
    table.write_text(",".join(f"column{number}" for number in range(10_000)) + "\n" + "," * 9_999 + "\n")
    said = refused(run, table, "--text", "body")
    assert "column9 and 9,990 more" in said
    assert len(said) < 1000


def test_tables(refused: Refused, run: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "WINDOW_ROWS", 4)
    write_table(table, ("sentence",), [("a",), ("",), ("b",), ("c",), ("",), (" ",)])
    assert "in.csv, row 2: the text is empty: fill it in, or remove such rows" in refused(run, table)
    write_table(table, ("sentence",), [])
    assert "expected rows to predict, found none" in refused(run, table)


def test_where_to_write_and_what_with(refused: Refused, run: Path, table: Path, tmp_path: Path) -> None:
    endings = "expected a file that ends in .csv, .tsv, .parquet, found .txt"
    assert endings in refused(run, table, out="out.txt")
    assert "no does not exist" in refused(run, table, out="no/out.csv")
    one_of_many = ("--array_index", 0, "--array_size", 2)
    assert "--array_index: expected --input to be a folder" in refused(run, table, *one_of_many)
    (tmp_path / "out.csv").write_text("another's")
    assert "out.csv: is there already: remove it, or name another file" in refused(run, table)


@pytest.fixture
def half_done(run: Path, table: Path, predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All parts of a prediction that was interrupted before its file was written; `whole.csv` is what becomes of it."""
    monkeypatch.setattr(tables, "WINDOW_ROWS", 4)
    assert predict(run, table, out="whole.csv") == 0
    with monkeypatch.context() as context:
        context.setattr(Parts, "finish", raising(KeyboardInterrupt()))
        assert predict(run, table) == 130
    return tmp_path / "out.csv.parts"


@pytest.mark.parametrize("other", ["weights", "table", "text", "id"])
def test_parts_of_another_prediction_are_refused(
    refused: Refused, run: Path, table: Path, half_done: Path, other: str
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
    said = refused(run, table, *flags)
    assert f"made from something else:\n  {other}: found " in said or f"\n  {other}: found " in said
    assert "name another file with --out" in said


def test_a_file_that_came_beside_the_parts_stays(refused: Refused, run: Path, table: Path, half_done: Path) -> None:
    half_done.with_name("out.csv").write_text("another's")
    assert "out.csv: is there already" in refused(run, table)
