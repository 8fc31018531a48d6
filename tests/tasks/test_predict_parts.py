"""Finished parts of a prediction, and files of others in their places: nothing wrong gets into a result in silence."""

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetuning import made_rows, write_table
from small import contents, run_here

from nystromformer.runs import store
from nystromformer.runs.store import Store
from nystromformer.tasks.prediction import stream
from nystromformer.training.archive import read_checkpoint, write_checkpoint

SCRIPT = "code/run_predict.py"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "in.csv", ("sentence", "key"), made_rows(20))


Predict = Callable[..., int]


@pytest.fixture
def predict(finished: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.setattr(stream, "WINDOW_ROWS", 8)

    def predict(*flags: object, folder: Path = finished, out: str = "out.csv") -> int:
        return run_here(
            monkeypatch, SCRIPT, folder, "--input", table, "--device", "cpu", "--out", tmp_path / out, *flags
        )

    return predict


@pytest.fixture
def parts(predict: Predict, tmp_path: Path) -> Path:
    """All parts of a prediction that was interrupted before its file was written; `whole.csv` is what becomes of it."""
    assert predict(out="whole.csv") == 0
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Store, "publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert predict() == 130
    return tmp_path / "out.csv.parts"


@pytest.fixture
def same(tmp_path: Path) -> Callable[[], bool]:
    return lambda: (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("place", ["a folder", "a link", "a file"])
def test_a_folder_of_somebodys_with_the_parts_name(
    predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    theirs = tmp_path / ("theirs" if place == "a link" else "out.csv.parts")
    if place == "a file":
        theirs.write_text("a thesis")
    else:
        theirs.mkdir()
        (theirs / "thesis.txt").write_text("a thesis")
    if place == "a link":
        (tmp_path / "out.csv.parts").symlink_to("theirs")
    before = contents(tmp_path)
    assert predict() == 2
    assert contents(tmp_path) == before
    said = capsys.readouterr().err
    assert "out.csv.parts: expected a folder" in said
    assert "or name another file with --out" in said


@pytest.mark.parametrize("place", ["out.csv.tmp", "out.csv.parts/notes.txt", "out.csv.parts/00000001.tmp"])
def test_files_of_somebodys_stay(
    parts: Path, predict: Predict, same: Callable[[], bool], tmp_path: Path, place: str
) -> None:
    (tmp_path / "thesis.txt").write_text("a thesis")
    (tmp_path / place).symlink_to(tmp_path / "thesis.txt")
    assert predict() == 0
    assert same()
    assert (tmp_path / place).is_symlink()
    assert (tmp_path / "thesis.txt").read_text() == "a thesis"


def test_an_output_that_was_made_meanwhile(
    predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = stream._compute
    out = tmp_path / "out.csv"
    with monkeypatch.context() as context:
        context.setattr(stream, "_compute", lambda *args: (compute(*args), out.write_text("theirs")))
        assert predict() == 2
    assert "out.csv: was created by something else while this command ran, and was left" in capsys.readouterr().err
    assert out.read_text() == "theirs"
    out.unlink()
    assert predict() == 0
    assert predict(out="whole.csv") == 0
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_an_output_beside_complete_parts(parts: Path, predict: Predict, tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("theirs")
    before = contents(parts)
    assert predict() == 2
    assert (tmp_path / "out.csv").read_text() == "theirs"
    assert {name: contents(parts).get(name) for name in before if not name.startswith(".")} == {
        name: content for name, content in before.items() if not name.startswith(".")
    }


def reordered(content: bytes) -> bytes:
    """The columns of the scores, which are a part's last bytes but its checksum, in another order."""
    scores = np.frombuffer(content[-64 - 8 * 8 : -64], "<f4").reshape(8, 2)
    return content[: -64 - 8 * 8] + np.ascontiguousarray(scores[:, ::-1]).tobytes() + content[-64:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda content: content[:-80] + bytes([content[-80] ^ 1]) + content[-79:],
    "a NaN": lambda content: content[:-68] + np.float32("nan").tobytes() + content[-64:],
    "columns": reordered,
    "rows": lambda content: content[: -64 - 16] + content[-64 - 8 : -64] + content[-64 - 16 : -64 - 8] + content[-64:],
    "cut": lambda content: content[:-64],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_part_is_computed_again(
    parts: Path, predict: Predict, same: Callable[[], bool], capfd: pytest.CaptureFixture[str], name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (path,) = parts.glob("00000001*")
    content = path.read_bytes()
    path.write_bytes(DAMAGES[name](content))
    assert path.read_bytes() != content
    assert predict() == 0
    assert same()
    assert f"{path}: damaged; it is computed again" in caplog.text
    assert not parts.exists()


@pytest.mark.parametrize("kind", ["a zip", "another dtype", "a pipe", "a folder", "another part"])
def test_what_is_no_part_is_refused(
    parts: Path, predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (path,) = parts.glob("00000001*")
    path.unlink()
    if kind == "a zip":
        np.savez(tmp_path / "zip.npz", scores=np.zeros((8, 2)))
        (tmp_path / "zip.npz").rename(path)
    elif kind == "another dtype":
        np.save(tmp_path / "array.npy", np.zeros((8, 2), np.int64))
        (tmp_path / "array.npy").rename(path)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        shutil.copy(next(iter(parts.glob("00000000*"))), path)
    before = {name: each for name, each in contents(parts).items() if not name.startswith(".")}
    assert predict() == 2
    assert {name: contents(parts).get(name) for name in before} == before
    assert f"{path}: expected" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    "other", ["checkpoint", "table", "version", "tokens_at_a_time", "text", "id", "mark gone", "run, mark gone"]
)
def test_parts_of_another_prediction_are_refused(
    parts: Path, predict: Predict, finished: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, other: str,
) -> None:  # fmt: skip
    flags: tuple[object, ...] = ()
    folder = finished
    if other in ("checkpoint", "run, mark gone"):
        shutil.copytree(finished.parents[3], tmp_path / "experiment")
        folder = tmp_path / "experiment" / finished.relative_to(finished.parents[3])
        change_weights(folder, lambda weights: next(iter(weights.values())).mul_(1.01))
    elif other == "table":
        write_table(table, ("sentence", "key"), made_rows(20, 1))
    elif other == "version":
        monkeypatch.setattr(store, "__version__", "0.0.9")
    elif other == "tokens_at_a_time":
        flags = ("--tokens_at_a_time", 100)
    elif other in ("text", "id"):
        flags = (f"--{other}", "key")
    if other.endswith("mark gone"):
        (parts / "mark").unlink()
    before = contents(parts)
    assert predict(*flags, folder=folder) == 2
    assert contents(parts) == before
    said = capsys.readouterr().err
    assert "out.csv.parts: " in said
    advice = "move it away, or name" if other.endswith("mark gone") else f"parts to start again with {table}, or name"
    assert f"{advice} another file with --out" in said
    assert not (tmp_path / "out.csv").exists()


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> str:
    (path,) = folder.glob("*.model")
    content = read_checkpoint(path)
    change(content["model"])
    write_checkpoint(content, path)
    return path.name


@pytest.mark.parametrize("moment", ["before it is computed", "while it is computed", "before it is written"])
def test_a_table_that_changes_while_it_is_read(
    predict: Predict, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], moment: str,
) -> None:  # fmt: skip
    compute, encoded = stream._compute, stream.encoded
    text = table.read_text()

    def change() -> None:
        table.write_text(text.replace("20", "another text") if "20" in text else text[:-40] + "x" + text[-39:])

    def changed(*args: Any) -> Any:
        if moment == "before it is computed":
            change()
        compute(*args)
        if moment == "before it is written":
            change()

    def encoding(*args: Any) -> Any:
        if moment == "while it is computed":
            change()
        return encoded(*args)

    with monkeypatch.context() as context:
        context.setattr(stream, "_compute", changed)
        context.setattr(stream, "encoded", encoding)
        assert predict() == 2
    said = capsys.readouterr().err
    assert f"{table}: changed while it was being read" in said
    assert not (tmp_path / "out.csv").exists()
    table.write_text(text)
    assert predict() == 0
    assert predict(out="whole.csv") == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_weights_that_change_while_they_are_used(
    predict: Predict,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(finished.parents[3], tmp_path / "experiment")
    folder = tmp_path / "experiment" / finished.relative_to(finished.parents[3])
    compute = stream._compute

    def changed(*args: Any) -> None:
        compute(*args)
        change_weights(folder, lambda weights: next(iter(weights.values())).mul_(1.01))

    monkeypatch.setattr(stream, "_compute", changed)
    assert predict(folder=folder) == 2
    assert ".model: changed while it was being used" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_two_commands_on_one_output(
    predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compute = stream._compute
    statuses = []

    def twice(*args: Any) -> None:
        compute(*args)
        with monkeypatch.context() as context:
            context.setattr(stream, "_compute", compute)
            statuses.append(predict())

    with monkeypatch.context() as context:
        context.setattr(stream, "_compute", twice)
        assert predict() == 0
    assert statuses == [2]
    assert "out.csv.parts: another command is using it" in capsys.readouterr().err
    assert (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(
    predict: Predict, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    shutil.copytree(finished.parents[3], tmp_path / "experiment")
    folder = tmp_path / "experiment" / finished.relative_to(finished.parents[3])
    names: list[str] = []

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        names.extend(list(weights)[3:5])
        for name in names:
            weights[name].view(-1)[1] = value

    path = change_weights(folder, spoil)
    before = contents(tmp_path)
    assert predict(folder=folder) == 2
    said = capsys.readouterr().err
    assert f"{path}: {names[0]}: expected finite weights, found NaN or infinity" in said
    assert "as have 1 other tensor" in said
    assert contents(tmp_path) == before


def test_a_pipe_in_the_place_of_weights(
    predict: Predict, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished.parents[3], tmp_path / "experiment")
    folder = tmp_path / "experiment" / finished.relative_to(finished.parents[3])
    (path,) = folder.glob("*.model")
    path.unlink()
    os.mkfifo(path)
    assert predict(folder=folder) == 2
    assert f"{path}: no file, where a checkpoint should be" in capsys.readouterr().err


@pytest.mark.parametrize(("ending", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_names_with_line_ends_come_back(
    predict: Predict, table: Path, tmp_path: Path, ending: str, delimiter: str
) -> None:
    names = ["a\rb", "\r", "c\r\nd", "e\nf", 'g"h', "i,j\tk", "plain"]
    with table.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("sentence", "key"), *(("a text", name) for name in names)])
    assert predict("--id", "key", out=f"out.{ending}") == 0
    content = (tmp_path / f"out.{ending}").read_bytes()
    assert content.startswith(delimiter.join(("id", "prediction")).encode())
    assert b"\nplain" in content
    with (tmp_path / f"out.{ending}").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file, delimiter=delimiter)] == names


def test_a_table_of_many_columns(predict: Predict, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(",".join(f"column{number}" for number in range(100_000)) + "\n" + "," * 99_999 + "\n")
    for flags in ((), ("--text", "body"), ("--text", "column1", "--id", "nothing")):
        assert predict(*flags) == 2
        said = capsys.readouterr().err
        assert "column9 and 99,990 more" in said
        assert len(said) < 1000
