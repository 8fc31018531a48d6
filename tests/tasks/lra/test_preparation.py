"""Preparing data: finished parts, files of others in their places, sources that change, two commands at once."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from finetuning import write_imdb
from small import run_here

from nystromformer.errors import UserError
from nystromformer.files import NewFile
from nystromformer.runs import store
from nystromformer.runs.store import Store
from nystromformer.tasks.lra import made, sources
from nystromformer.tasks.lra.listops import Expressions
from nystromformer.tasks.lra.listops_data import DrawnListOps
from nystromformer.tasks.lra.preparation import check_free
from nystromformer.tasks.lra.prepare import draw_listops
from nystromformer.tasks.lra.stored import SPLITS, open_stored, split_files

SCRIPT = "experiments/lra/prepare.py"
SHORT = Expressions(longer_than=4, shorter_than=40, depth=5, most_values=4)
SIZES = {"train": 30, "validation": 5, "test": 5}
FLAGS = (
    "listops", "--longer_than", 4, "--shorter_than", 40, "--depth", 5, "--most_values", 4, "--train", 30,
    "--validation", 5, "--test", 5, "--workers", 1,
)  # fmt: skip
Prepare = Callable[..., int]


@pytest.fixture(autouse=True)
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "_CHUNK", 7)


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Prepare:
    return lambda *words: run_here(monkeypatch, SCRIPT, *(words or FLAGS), "--out", tmp_path / "out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    draw_listops(folder, SHORT, SIZES, 0, 1)
    return contents(folder)


@pytest.fixture
def parts(prepare: Prepare, tmp_path: Path) -> Path:
    """All parts of data whose files were about to get their names."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Store, "publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert prepare() == 130
    return tmp_path / "out" / "parts"


def contents(folder: Path) -> dict[str, Any]:
    """What lies there but for temporary files."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


@pytest.mark.parametrize("name", ["train.tokens.bin", "test.labels.bin", "parts/mine.txt", "parts"])
def test_files_of_somebodys_are_refused(
    prepare: Prepare, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("a thesis")
    before = contents(tmp_path)
    assert prepare() == 2
    assert contents(tmp_path) == before
    said = capsys.readouterr().err
    assert str(path if "parts" not in name else tmp_path / "out" / "parts") in said
    assert "choose another --out" in said


def test_a_picture_of_somebodys_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "samples.png").write_text("a photograph")
    assert prepare("pathfinder", "--train", 2, "--validation", 1, "--test", 1, "--workers", 1) == 2
    assert contents(tmp_path / "out") == {"samples.png": b"a photograph"}
    check_free(tmp_path / "out", "listops")  # which draws no such picture


def test_a_link_in_the_place_of_a_temporary_name(prepare: Prepare, tmp_path: Path, whole: dict[str, Any]) -> None:
    (tmp_path / "thesis.txt").write_text("a thesis")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.tokens.bin.tmp").symlink_to(tmp_path / "thesis.txt")
    assert prepare() == 0
    assert (tmp_path / "thesis.txt").read_text() == "a thesis"
    (tmp_path / "out" / "train.tokens.bin.tmp").unlink()
    assert contents(tmp_path / "out") == whole


def test_a_file_that_appears_meanwhile(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    publish = Store.publish
    path = tmp_path / "out" / "test.ends.bin"
    with monkeypatch.context() as context:
        context.setattr(Store, "publish", lambda *args: (path.write_text("theirs"), publish(*args)))
        assert prepare() == 2
    assert path.read_text() == "theirs"
    assert not (tmp_path / "out" / "manifest.json").exists()
    path.unlink()
    assert prepare() == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_a_damaged_part_is_drawn_again(
    parts: Path, prepare: Prepare, tmp_path: Path, whole: dict[str, Any], caplog: pytest.LogCaptureFixture, place: float
) -> None:
    path = parts / "train-7-14"
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)
    caplog.set_level(logging.WARNING)
    assert prepare() == 0
    assert f"{path}: damaged; it is computed again" in caplog.text
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("kind", ["text", "a pipe", "a folder", "another part"])
def test_what_is_no_part_is_refused(
    parts: Path, prepare: Prepare, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = parts / "train-7-14"
    path.unlink()
    if kind == "text":
        path.write_text("a thesis of more than a few words")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        shutil.copy(parts / "train-0-7", path)
    before = contents(parts)
    assert prepare() == 2
    assert contents(parts) == before
    assert f"{path}: expected" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["seed", "sizes", "task", "version", "mark gone"])
def test_parts_of_other_data_are_refused(
    parts: Path, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    words: tuple[object, ...] = FLAGS
    if other == "seed":
        words = (*FLAGS, "--seed", 1)
    elif other == "sizes":
        words = tuple(31 if word == 30 else word for word in FLAGS)
    elif other == "task":
        words = ("pathfinder", "--train", 1, "--validation", 1, "--test", 1)
    elif other == "version":
        monkeypatch.setattr(store, "__version__", "0.0.9")
    else:
        (parts / "mark").unlink()
    before = contents(parts)
    assert prepare(*words) == 2
    assert contents(parts) == before
    said = capsys.readouterr().err
    assert f"{parts}" in said
    assert ("move it away, or" if other == "mark gone" else "begin anew, or") + " choose another --out" in said


def test_a_full_disk_keeps_the_parts(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    """Full while it is drawn, and again while the parts are joined: nothing is drawn twice."""
    drawn: list[tuple[str, int]] = []
    example, end = DrawnListOps.example, NewFile.__exit__

    def counted(self: DrawnListOps, split: str, number: int, attempt: int) -> Any:
        if not attempt:
            drawn.append((split, number))
        return example(self, split, number, attempt)

    def full(name: str) -> Callable[..., None]:
        def exits(self: NewFile, *args: Any) -> None:
            if self.path.name == name and args[0] is None:
                failure = UserError(f"{self.path}: no space left on the device")
                end(self, type(failure), failure, None)
                raise failure
            end(self, *args)

        return exits

    monkeypatch.setattr(DrawnListOps, "example", counted)
    for name in ("train-14-21", "train.ends.bin"):
        with monkeypatch.context() as context:
            context.setattr(NewFile, "__exit__", full(name))
            assert prepare() == 2
    assert prepare() == 0
    assert contents(tmp_path / "out") == whole
    kept = [each for each in drawn if each[0] != "train" or not 14 <= each[1] < 21]
    assert len(kept) == len(set(kept)) == 33


def test_killed_while_the_files_get_their_names(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    place = store.place_new
    for number in range(1, 12):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        left = [number]

        def dies(source: Path, target: Path, left: list[int] = left) -> None:
            if target.parent == tmp_path / "out":
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
            place(source, target)

        with monkeypatch.context() as context:
            context.setattr(store, "place_new", dies)
            status = prepare()
        if status == 0:
            break
        assert status == 130
        assert prepare() == 0
        assert contents(tmp_path / "out") == whole
    assert number == 11, "nine files and the manifest"


def test_two_commands_on_one_folder(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    whole: dict[str, Any],
) -> None:  # fmt: skip
    example = DrawnListOps.example
    statuses: list[int] = []

    def meanwhile(self: DrawnListOps, split: str, number: int, attempt: int) -> Any:
        if not statuses:
            statuses.append(0)
            with monkeypatch.context() as context:
                context.setattr(DrawnListOps, "example", example)
                statuses[:] = [prepare()]
        return example(self, split, number, attempt)

    with monkeypatch.context() as context:
        context.setattr(DrawnListOps, "example", meanwhile)
        assert prepare() == 0
    assert statuses == [2]
    assert "out/parts: another command is at work there" in capsys.readouterr().err
    assert contents(tmp_path / "out") == whole


def write_release(folder: Path) -> Path:
    folder.mkdir()
    for number, name in enumerate(("train", "val", "test")):
        lines = "".join(f"[MAX {number} {digit} ]\t{max(number, digit)}\n" for digit in range(5))
        (folder / f"basic_{name}.tsv").write_text(f"Source\tTarget\n{lines}")
    return folder


@pytest.mark.parametrize("kind", ["a link to nothing", "a folder"])
def test_what_is_no_file_is_not_taken_for_a_missing_one(
    tmp_path: Path, prepare: Prepare, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = write_release(tmp_path / "release") / "basic_val.tsv"
    path.unlink()
    path.mkdir() if kind == "a folder" else path.symlink_to("nowhere")
    assert prepare("listops", "--release", tmp_path / "release", "--partial") == 2
    assert f"{path}: expected a file, found something else" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_source_that_changes_while_it_is_read(
    tmp_path: Path, prepare: Prepare, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_release(tmp_path / "release")
    words = ("listops", "--release", folder, "--partial")
    carve = sources.UnchangedSource.__call__
    calls = [0]

    def changing(self: Any) -> Iterator[Any]:
        calls[0] += 1
        if calls[0] == 4:  # after one reading of each file
            path = folder / "basic_train.tsv"
            path.write_text(path.read_text().replace("[MAX 0 3 ]\t3", "[MAX 0 4 ]\t4"))
        return carve(self)

    with monkeypatch.context() as context:
        context.setattr(sources.UnchangedSource, "__call__", changing)
        assert prepare(*words) == 2
    assert f"{folder}: changed while it was read, so that nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert prepare(*words) == 0
    assert open_stored(tmp_path / "out", "listops").manifest.splits["train"].examples == 5


def test_reviews_are_not_written_over(prepare: Prepare, tmp_path: Path) -> None:
    """What is not drawn appears as a whole, too."""
    reviews = write_imdb(tmp_path / "aclImdb")
    words = ("text", "--imdb", reviews, "--partial")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.ends.bin").write_text("theirs")
    assert prepare(*words) == 2
    assert contents(tmp_path / "out") == {"train.ends.bin": b"theirs"}
    (tmp_path / "out" / "train.ends.bin").unlink()
    assert prepare(*words) == 0
    open_stored(tmp_path / "out", "text").verify()
    files = {path.name for split in SPLITS for path in split_files(tmp_path, split)}
    assert set(contents(tmp_path / "out")) == {*files, "manifest.json"}
