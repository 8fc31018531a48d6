"""Data of the Long Range Arena's tasks: what is prepared, from what, and what is refused."""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small import run_here

from nystromformer.errors import UserError
from nystromformer.tasks.lra import made
from nystromformer.tasks.lra.image_data import in_grey, read_pictures
from nystromformer.tasks.lra.listops import Expressions, evaluate
from nystromformer.tasks.lra.listops_data import DrawnListOps
from nystromformer.tasks.lra.prepare import draw_listops
from nystromformer.tasks.lra.sources import carve
from nystromformer.tasks.lra.stored import SPLITS, Stored, open_stored, read_manifest, write_split

SCRIPT = "experiments/lra/prepare.py"
Prepare = Callable[..., int]
SHORT = Expressions(longer_than=4, shorter_than=40, depth=5, most_values=4)
SIZES = {"train": 30, "validation": 5, "test": 5}


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def examples(stored: Stored, split: str) -> list[tuple[bytes, int]]:
    one = stored.split(split)
    return [(one.tokens(number).tobytes(), label) for number, label in enumerate(one.labels.tolist())]


def test_drawn_expressions_are_right_and_none_is_there_twice(tmp_path: Path) -> None:
    draw_listops(tmp_path, SHORT, SIZES, 0, 1)
    stored = open_stored(tmp_path, "listops")
    stored.verify()
    everything = [example for split in SPLITS for example in examples(stored, split)]
    assert len(everything) == len({tokens for tokens, _ in everything}) == 40
    assert all(evaluate(tokens) == label for tokens, label in everything)
    assert stored.manifest.splits["train"].labels == np.bincount(stored.split("train").labels, minlength=10).tolist()
    lengths = stored.split("train").lengths
    assert (lengths.min(), lengths.max()) == (
        stored.manifest.splits["train"].shortest,
        stored.manifest.splits["train"].longest,
    )
    assert not list(tmp_path.glob("parts*"))


def test_any_number_of_processes_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "_CHUNK", 7)
    for workers in (1, 2):
        draw_listops(tmp_path / str(workers), SHORT, SIZES, 3, workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    draw_listops(tmp_path / "other", SHORT, SIZES, 4, 1)
    assert content(tmp_path / "other") != content(tmp_path / "1")


def test_what_was_drawn_before_a_kill_is_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "_CHUNK", 7)
    draw_listops(tmp_path / "whole", SHORT, SIZES, 0, 1)
    drawn: list[tuple[str, int]] = []
    example = DrawnListOps.example

    def counted(self: DrawnListOps, split: str, number: int, attempt: int) -> object:
        drawn.append((split, number))
        if len(drawn) == 20:
            raise KeyboardInterrupt
        return example(self, split, number, attempt)

    monkeypatch.setattr(DrawnListOps, "example", counted)
    with pytest.raises(KeyboardInterrupt):
        draw_listops(tmp_path / "killed", SHORT, SIZES, 0, 1)
    assert read_manifest(tmp_path / "killed") is None
    before = len(drawn)
    draw_listops(tmp_path / "killed", SHORT, SIZES, 0, 1)
    assert drawn[before] == ("train", 14), "from the first chunk that was not finished"
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_what_fails_at_its_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object, content: bytes) -> None:
        raise UserError("no space left")

    monkeypatch.setattr("nystromformer.files.NewFile.write", full)
    with pytest.raises(UserError, match="no space left"):
        write_split(tmp_path, "train", [([b"\x01"], 0)], kinds=2, classes=2)
    assert not list(tmp_path.iterdir())


def test_an_empty_review_is_named(
    reviews: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reviews / "train" / "pos" / "3_7.txt").write_text("")
    assert prepare("text", "--imdb", reviews, "--out", tmp_path / "out") == 2
    assert "expected text in every review, found none in pos/3_7" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pictures_without_content_are_left_out(release: Path, prepare: Prepare, tmp_path: Path) -> None:
    (release / "pathfinder32" / "curv_contour_length_14" / "imgs" / "0" / "sample_3.png").write_bytes(b"")
    assert prepare("pathfinder", "--release", release, "--partial", "--out", tmp_path / "out") == 0
    manifest = open_stored(tmp_path / "out", "pathfinder").manifest
    assert sum(facts.examples for facts in manifest.splits.values()) == 19
    assert "1 picture of the release without content left out" in manifest.warnings


def test_too_few_different_expressions_are_refused(tmp_path: Path) -> None:
    tiny = Expressions(longer_than=0, shorter_than=3, depth=2, most_values=2)
    with pytest.raises(UserError, match="there seem to be no other ones"):
        draw_listops(tmp_path / "out", tiny, {"train": 30, "validation": 1, "test": 1}, 0, 1)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release of which every task has a little."""
    folder = tmp_path / "lra_release"
    lists = folder / "listops-1000"
    lists.mkdir(parents=True)
    for number, split in enumerate(("train", "val", "test")):
        lines = [f"( ( ( [MAX {number} ) {value} ) ] )\t{max(number, value)}" for value in range(6)]
        (lists / f"basic_{split}.tsv").write_text("\n".join(["Source\tTarget", *lines]) + "\n")
    pairs = folder / "tsv_data"
    pairs.mkdir()
    for split in ("train", "eval", "test"):
        rows = [f"{number % 2}.0\tA{number}\tB{number}\t{split} föö {number}\tbar {number}" for number in range(8)]
        (pairs / f"new_aan_pairs.{split}.tsv").write_text("\n".join(rows) + "\n")
    batches = folder / "cifar-10-batches-py"
    batches.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = {b"data": pixels, b"labels": [0, 1, 2, 3, 4, 9], b"batch_label": name.encode()}
        (batches / name).write_bytes(pickle.dumps(data, protocol=2))
    pictures = folder / "pathfinder32" / "curv_contour_length_14"
    (pictures / "metadata").mkdir(parents=True)
    lines = []
    for number in range(20):
        (pictures / "imgs" / "0").mkdir(parents=True, exist_ok=True)
        image = np.zeros((32, 32), dtype=np.uint8)
        image[number, :] = 10 * number + 5
        Image.fromarray(image).save(pictures / "imgs" / "0" / f"sample_{number}.png")
        lines.append(f"imgs/0 sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1")
    (pictures / "metadata" / "0.npy").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            folder = tmp_path / "imdb" / split / label
            folder.mkdir(parents=True)
            for number in range(10):
                (folder / f"{number}_7.txt").write_text(f"a {label} film<br /><br />é {number} " * 3)
    return tmp_path / "imdb"


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Prepare:
    return lambda *words: run_here(monkeypatch, SCRIPT, *words)


def test_a_release_is_taken_as_it_is(release: Path, prepare: Prepare, tmp_path: Path) -> None:
    assert prepare("listops", "--release", release, "--partial", "--out", tmp_path / "a") == 0
    stored = open_stored(tmp_path / "a", "listops")
    assert [examples(stored, split)[5][1] for split in SPLITS] == [5, 5, 5]
    assert stored.manifest.kinds == 15
    assert len(stored.manifest.warnings) == 3, "of other sizes than the official ones"
    assert prepare("listops", "--release", release, "--brackets", "--partial", "--out", tmp_path / "b") == 0
    kept = open_stored(tmp_path / "b", "listops")
    assert kept.manifest.kinds == 17
    assert "with the brackets that group: 17 kinds of token, the Long Range Arena's have 15" in kept.manifest.warnings
    assert evaluate(examples(kept, "train")[5][0]) == 5


def test_pairs_are_bytes_and_what_is_cut_is_said(
    release: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare("retrieval", "--release", release, "--length", 6, "--partial", "--out", tmp_path / "out") == 0
    assert "cut" in capsys.readouterr().out
    split = open_stored(tmp_path / "out", "retrieval").split("train")
    assert [bytes(split.tokens(3, sequence)) for sequence in (0, 1)] == [b"train ", b"bar 3"]
    assert split.labels.tolist() == [0, 1] * 4
    assert split.facts.cut == 8
    assert split.lengths.tolist() == [[6, 5]] * 8
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert "sequences have at most 6 bytes (--length), the Long Range Arena's 4,000" in manifest.warnings


def test_reviews_are_bytes(reviews: Path, prepare: Prepare, tmp_path: Path) -> None:
    assert prepare("text", "--imdb", reviews, "--length", 12, "--partial", "--out", tmp_path / "out") == 0
    stored = open_stored(tmp_path / "out", "text")
    assert [len(stored.split(split)) for split in SPLITS] == [18, 2, 20]
    parts = {split: {tokens for tokens, _ in examples(stored, split)} for split in SPLITS}
    assert parts["test"] == {b"a pos film<b", b"a neg film<b"}
    assert any("at most 12 bytes (--length)" in text for text in stored.manifest.warnings)
    assert prepare("text", "--imdb", reviews, "--validate_on_test", "--partial", "--out", tmp_path / "authors") == 0
    authors = open_stored(tmp_path / "authors", "text")
    assert examples(authors, "validation") == examples(authors, "test")
    assert any("the test is none" in text for text in authors.manifest.warnings)
    assert not any("--length" in text for text in authors.manifest.warnings)
    assert "é".encode() in examples(authors, "train")[0][0]


def test_pictures_are_grey(release: Path, prepare: Prepare, tmp_path: Path) -> None:
    assert prepare("image", "--cifar", release, "--partial", "--out", tmp_path / "out") == 0
    stored = open_stored(tmp_path / "out", "image")
    assert [len(stored.split(split)) for split in SPLITS] == [27, 3, 6]
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    red, green, blue = pixels.reshape(-1, 3, 1024).astype(float).transpose(1, 0, 2)
    wanted = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    found = np.stack([stored.split("test").tokens(number) for number in range(6)]).astype(float)
    assert np.abs(found - wanted).max() <= 1
    assert in_grey(np.full((1, 3072), 255, dtype=np.uint8)).tolist() == [[255] * 1024]


def test_the_last_pictures_are_validation_data(
    release: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cifar = shutil.copytree(release, tmp_path / "cifar")
    assert prepare("image", "--cifar", cifar, "--partial", "--validate_on_last", "--out", tmp_path / "last") == 0
    assert prepare("image", "--cifar", cifar, "--partial", "--out", tmp_path / "drawn") == 0
    last, drawn = (open_stored(tmp_path / name, "image") for name in ("last", "drawn"))
    test_file = next(cifar.rglob("test_batch"))
    pictures = [each for path in sorted(test_file.parent.glob("data_batch_*")) for each in read_pictures(path)]
    wanted = [(bytes(pixels), label) for (pixels,), label in pictures]
    assert examples(last, "train") == wanted[:27]
    assert examples(last, "validation") == wanted[27:]
    assert examples(last, "test") == examples(drawn, "test")
    assert last.manifest.settings["validate_on_last"] is not drawn.manifest.settings["validate_on_last"]
    test_file.unlink()
    assert prepare("image", "--cifar", cifar, "--partial", "--validate_on_last", "--out", tmp_path / "none") == 2
    assert "--validate_on_last: expected CIFAR-10's test_batch" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()


def test_pictures_of_the_hub_are_those_of_the_files(
    release: Path,
    prepare: Prepare,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    pictures = [Image.fromarray(each.reshape(3, 32, 32).transpose(1, 2, 0)) for each in pixels]
    rows = [{"img": picture, "label": label} for picture, label in zip(pictures, (0, 1, 2, 3, 4, 9), strict=True)]
    data = {"train": rows * 5, "test": rows}
    monkeypatch.setattr("nystromformer.tasks.lra.image_data.load_split", lambda name, config, split: data[split])
    monkeypatch.setattr("nystromformer.tasks.lra.image_data.OFFICIAL", {"train": 30, "test": 6})
    assert prepare("image", "--cifar", "hub", "--out", tmp_path / "hub") == 0
    assert prepare("image", "--cifar", release, "--out", tmp_path / "files") == 0
    hub, files = (open_stored(tmp_path / name, "image") for name in ("hub", "files"))
    assert all(examples(hub, split) == examples(files, split) for split in SPLITS)
    assert prepare("image", "--cifar", "hub", "--partial", "--out", tmp_path / "other") == 2
    assert "--partial: expected no --cifar hub beside it" in " ".join(capsys.readouterr().err.split())


def test_the_hub_without_a_network(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert prepare("image", "--cifar", "hub", "--out", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot be loaded from uoft-cs/cifar10: " in said
    assert "It needs a network; without one, give --cifar the folder" in said
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_releases_pictures_of_paths(release: Path, prepare: Prepare, tmp_path: Path) -> None:
    flags = ("--release", release, "--partial", "--out", tmp_path / "out")
    assert prepare("pathfinder", *flags) == 0
    stored = open_stored(tmp_path / "out", "pathfinder")
    assert [len(stored.split(split)) for split in SPLITS] == [16, 2, 2]
    for split in SPLITS:
        for tokens, label in examples(stored, split):
            image = np.frombuffer(tokens, np.uint8).reshape(32, 32)
            (row,) = np.flatnonzero(image.any(1))
            assert image[row, 0] == 10 * row + 5
            assert label == row % 2
    assert (tmp_path / "out" / "samples.png").is_file()


def test_paths_are_drawn(prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--train", 4, "--validation", 1, "--test", 1)
    flags = ("--contour", 3, "--no_distractors", *sizes, "--workers", 1)
    assert prepare("pathfinder", *flags, "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "not the Long Range Arena's Pathfinder: paths of 3 dashes without distractors; the Long Range" in said
    assert "train has 4 examples, the official one has 160,000" in said
    stored = open_stored(tmp_path / "out", "pathfinder")
    assert stored.split("train").lengths.tolist() == [[1024]] * 4
    assert prepare("pathfinder", *flags, "--out", tmp_path / "out") == 2
    assert "holds prepared data of pathfinder already" in capsys.readouterr().err
    assert prepare("pathfinder", *sizes, "--workers", 1, "--out", tmp_path / "official") == 0
    assert "drawn here with the Long Range Arena's parameters" in capsys.readouterr().out


def test_what_is_missing_is_cut_from_training_with_partial_alone(
    release: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (release / "tsv_data" / "new_aan_pairs.test.tsv").unlink()
    assert prepare("retrieval", "--release", release, "--out", tmp_path / "out") == 2
    assert "found no new_aan_pairs.test.tsv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert prepare("retrieval", "--release", release, "--partial", "--out", tmp_path / "out") == 0
    stored = open_stored(tmp_path / "out", "retrieval")
    assert [len(stored.split(split)) for split in SPLITS] == [7, 8, 1]
    assert stored.manifest.settings["carved"] == ["test"]
    assert "test cut from the training examples: the source has none of its own" in stored.manifest.warnings


@pytest.mark.parametrize("task", ["listops", "retrieval", "image", "text"])
def test_a_source_with_fewer_examples_is_taken_with_partial_alone(
    task: str, release: Path, reviews: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"image": ("--cifar", release), "text": ("--imdb", reviews)}.get(task, ("--release", release))
    assert prepare(task, *source, "--out", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is it whole? With --partial" in said
    assert not (tmp_path / "out").exists()
    assert prepare(task, *source, "--partial", "--out", tmp_path / "out") == 0


@pytest.mark.parametrize("name", ["listops-1000/basic_train.tsv", "tsv_data/new_aan_pairs.eval.tsv"])
def test_a_file_without_examples_is_refused_with_partial_too(
    name: str, release: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (release / name).write_bytes(b"")
    task = "listops" if "listops" in name else "retrieval"
    assert prepare(task, "--release", release, "--partial", "--out", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"0 examples of {'train' if task == 'listops' else 'validation'}" in said
    assert "--partial" not in said
    assert not (tmp_path / "out").exists()


def test_paths_of_another_length_are_named_and_never_taken_for_the_arenas(
    release: Path, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = (release / "pathfinder32" / "curv_contour_length_14").rename(release / "pathfinder32" / "curv_baseline")
    assert prepare("pathfinder", "--release", short, "--partial", "--out", tmp_path / "out") == 2
    assert "has paths of 6 dashes by its name, and 14 were asked for" in " ".join(capsys.readouterr().err.split())
    assert prepare("pathfinder", "--release", release, "--contour", 6, "--partial", "--out", tmp_path / "out") == 0
    assert "warning: not the Long Range Arena's Pathfinder: paths of 6 dashes" in capsys.readouterr().out


def test_the_releases_pictures_are_found_in_the_folder_that_it_unpacks_to(
    release: Path, prepare: Prepare, tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    release.rename(outer / "lra_release")
    assert prepare("pathfinder", "--release", outer, "--partial", "--out", tmp_path / "out") == 0


@pytest.mark.parametrize("drawing", [False, True], ids=["at its end", "while it draws"])
def test_a_failed_drawing_removes_nothing_of_others(
    drawing: bool, prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nystromformer.tasks.lra.pathfinder._MOST_ATTEMPTS", 3)
    (tmp_path / "model.bin").write_text("somebody's")
    sizes = ("--validation", 2, "--test", 2, "--workers", 1, "--out", tmp_path)
    if drawing:
        assert prepare("pathfinder", "--contour", 100, "--train", 3, *sizes) == 2
    else:
        assert prepare("listops", "--longer_than", 1, "--shorter_than", 5, "--train", 2000, *sizes) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


class Forged:
    """An array of pointers, as nothing of CIFAR-10 is."""

    def __reduce__(self) -> tuple[object, ...]:
        return np.ndarray, ((1,), np.dtype("O"), b"AAAAAAAA")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("/tmp/never-made-by-a-pickle"),))


def damage(release: Path, what: str) -> None:
    lists, pairs = release / "listops-1000" / "basic_val.tsv", release / "tsv_data" / "new_aan_pairs.eval.tsv"
    batch = release / "cifar-10-batches-py" / "data_batch_3"
    pictures = release / "pathfinder32" / "curv_contour_length_14"
    if what == "label":
        lists.write_text(lists.read_text().replace("\t5", "\t6"))
    elif what == "expression":
        lists.write_text(lists.read_text().replace("[MAX 1 ) 3 ) ]", "[MAX 1 ) 3 )"))
    elif what == "header":
        lists.write_text("Quelle\tTarget\n")
    elif what == "columns":
        pairs.write_text(pairs.read_text() + "1.0\tA\tB\tonly one text\n")
    elif what == "pair label":
        pairs.write_text("2.0\tA\tB\tx\ty\n")
    elif what == "code":
        batch.write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    elif what == "forged":
        batch.write_bytes(pickle.dumps({"data": Forged(), "labels": [0]}))
    elif what == "objects":
        batch.write_bytes(pickle.dumps({"data": np.array([[None] * 3072]), "labels": [0]}))
    elif what == "cut":
        batch.write_bytes(batch.read_bytes()[:100])
    elif what == "labels":
        batch.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": np.zeros(2, np.uint8)}))
    elif what == "no labels":
        batch.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}))
    elif what == "groups":
        lists.write_text(lists.read_text().replace("( ( ( [MAX 1", "( ( ( ( [MAX 1"))
    elif what == "pixels":
        batch.write_bytes(pickle.dumps({"data": np.zeros((2, 100), np.uint8), "labels": [0, 1]}))
    elif what == "picture":
        Image.fromarray(np.zeros((31, 32), np.uint8)).save(pictures / "imgs" / "0" / "sample_3.png")
    elif what == "no picture":
        (pictures / "imgs" / "0" / "sample_3.png").unlink()
    elif what == "metadata":
        (pictures / "metadata" / "0.npy").write_text("imgs/0 sample_0.png\n")
    elif what == "outside":
        (pictures / "metadata" / "0.npy").write_text("../../.. etc 0 1\n")
    elif what == "no tsv":
        shutil.rmtree(release / "tsv_data")


@pytest.mark.parametrize(
    ("task", "what", "words"),
    [
        ("listops", "label", "basic_val.tsv, line 7: its value is 5, its label '6'"),
        ("listops", "expression", "basic_val.tsv, line 5: 1 lists do not end"),
        ("listops", "header", "expected the header"),
        ("listops", "groups", "basic_val.tsv, line 2: its brackets ( and ) do not match"),
        ("retrieval", "columns", "new_aan_pairs.eval.tsv, line 9: expected 5 columns between tabs"),
        ("retrieval", "pair label", "line 1: expected the label 0.0 or 1.0, found '2.0'"),
        ("retrieval", "no tsv", "new_aan_pairs.train.tsv"),
        ("image", "code", "which no file of CIFAR-10 does"),
        ("image", "forged", "data_batch_3: expected a file of CIFAR-10, found something else"),
        ("image", "objects", "data_batch_3: expected a file of CIFAR-10, found something else"),
        ("image", "cut", "data_batch_3: expected a file of CIFAR-10, found something else"),
        ("image", "labels", "found something else: labels that are no list"),
        ("image", "no labels", "found something else: no labels"),
        ("image", "pixels", "expected pictures as rows of 3072 bytes, found (2, 100)"),
        ("pathfinder", "picture", "sample_3.png: expected 32 x 32 pixels, found 31 x 32"),
        ("pathfinder", "no picture", "sample_3.png: no such picture, but the metadata name it"),
        ("pathfinder", "metadata", "0.npy, line 1: expected a folder, a file, a number and a label"),
        ("pathfinder", "outside", "names a file outside of"),
    ],
)
def test_damaged_sources_are_refused_and_nothing_is_written(
    task: str,
    what: str,
    words: str,
    release: Path,
    prepare: Prepare,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(release, what)
    source = ("--cifar", release) if task == "image" else ("--release", release)
    partial = ("--partial",) if task == "pathfinder" else ()
    assert prepare(task, *source, *partial, "--out", tmp_path / "out") == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("listops", "--longer_than", 500, "--shorter_than", 501), "--shorter_than: expected more than 501"),
        (("listops", "--depth", 2, "--most_values", 2), "have at most 4 tokens"),
        (("listops", "--partial"), "--partial: expected --release beside it"),
        (("listops", "--release", ".", "--depth", 3), "--release: its expressions are taken as they are: expected no"),
        (("pathfinder", "--release", ".", "--train", 3), "--release: its pictures are taken as they are: expected no"),
        (("pathfinder", "--release", ".", "--no_distractors"), "--no_distractors: expected no --release beside it"),
        pytest.param(
            ("pathfinder", "--contour", 90, "--train", 1, "--validation", 1, "--test", 1),
            "found no room",
            marks=pytest.mark.slow,
        ),
        (("pathfinder", "--size", 48), "--size: expected one of 32, 64, 128, 256, found 48"),
        (("text", "--imdb", "nowhere"), "nowhere"),
        (("image", "--cifar", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_mistakes(
    words: tuple[object, ...], expected: str, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(*words, "--out", tmp_path / "out") == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_stored_data_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prepared data: run `python experiments/lra/prepare\.py listops` first"):
        open_stored(tmp_path, "listops")
    draw_listops(tmp_path, SHORT, SIZES, 0, 1)
    with pytest.raises(UserError, match="expected data of text, found that of listops"):
        open_stored(tmp_path, "text")
    tokens = tmp_path / "train.tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-1] + b"\xff")
    with pytest.raises(UserError, match=r"train\.tokens\.bin: is not as it was written"):
        open_stored(tmp_path, "listops").verify()
    tokens.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="expected a file of"):
        open_stored(tmp_path, "listops").split("train").tokens(0)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"kinds": 3}))
    with pytest.raises(UserError, match="expected the manifest of prepared data"):
        open_stored(tmp_path, "listops")


def test_a_token_that_there_is_not_is_not_written(tmp_path: Path) -> None:
    for wrong in ([b"\x02"], 0), ([b""], 0), ([b"\x01"], 5), ([b"\x01", b"\x01"], 0):
        with pytest.raises(ValueError, match="expected"):
            write_split(tmp_path, "train", [wrong], kinds=2, classes=2)
    assert not list(tmp_path.iterdir())


def test_parts_are_disjoint_and_of_a_seed() -> None:
    parts = carve(100, [0.1, 0.2], 0)
    assert [len(part) for part in parts] == [70, 10, 20]
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))
    assert carve(100, [0.1, 0.2], 1)[0].tolist() != parts[0].tolist()
    with pytest.raises(UserError, match="2 examples are too few"):
        carve(2, [0.1, 0.1], 0)
