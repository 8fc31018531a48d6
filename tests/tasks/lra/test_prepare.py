"""Data of the Long Range Arena's tasks: what is prepared, from what, what is refused, what an interruption leaves."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small import contents, run_here

from nystromformer.errors import UserError
from nystromformer.files.parts import Parts
from nystromformer.tasks.lra import listops
from nystromformer.tasks.lra import store as preparing
from nystromformer.tasks.lra.listops import Expressions, draw_listops
from nystromformer.tasks.lra.release import convert_to_grey
from nystromformer.tasks.lra.store import SPLITS, Stored, open_stored

SHORT = Expressions(longer_than=4, shorter_than=40, depth=5, most_values=4)
SIZES = {"train": 30, "validation": 5, "test": 5}
FLAGS = (
    "listops", "--longer_than", 4, "--shorter_than", 40, "--depth", 5, "--most_values", 4, "--train", 30,
    "--validation", 5, "--test", 5, "--workers", 1,
)  # fmt: skip
FEW = ("--train", 4, "--validation", 1, "--test", 1, "--workers", 1)


@dataclass
class Prepare:
    """The command, which writes into a folder `out`."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, *words: object) -> int:
        return run_here(self.monkeypatch, "experiments/lra/prepare.py", *words, "--out", self.out)

    def __call__(self, *words: object) -> Stored:
        """What it prepares, anew."""
        shutil.rmtree(self.out, ignore_errors=True)
        assert self.run(*words) == 0
        return open_stored(self.out, str(words[0]))

    def refuse(self, *words: object) -> str:
        """What it says where it writes nothing."""
        before = contents(self.out)
        assert self.run(*words) == 2
        assert contents(self.out) == before
        return " ".join(self.capsys.readouterr().err.split())


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Prepare:
    return Prepare(tmp_path, monkeypatch, capsys)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts."""
    monkeypatch.setattr(preparing, "_CHUNK", 7)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    draw_listops(folder, SHORT, SIZES, 0, 1)
    return contents(folder)


def examples(stored: Stored, split: str) -> list[tuple[bytes, int]]:
    one = stored.split(split)
    return [(one.tokens(number).tobytes(), label) for number, label in enumerate(one.labels.tolist())]


def test_drawn_expressions_are_right_and_none_is_there_twice(tmp_path: Path) -> None:
    wanted = Expressions(longer_than=2, shorter_than=7, depth=3, most_values=5)
    draw_listops(tmp_path, wanted, {"train": 500, "validation": 30, "test": 30}, 0, 1)
    drawn = [listops.draw_example(wanted, 0, "train", number, 0) for number in range(500)]
    assert len(set(drawn)) < 500, "some are drawn again"
    stored = open_stored(tmp_path, "listops")
    everything = [example for split in SPLITS for example in examples(stored, split)]
    assert len(everything) == len({tokens for tokens, _ in everything}) == 560
    split = stored.split("train")
    assert 2 < split.lengths.min() <= split.lengths.max() < 7
    assert not list(tmp_path.glob("parts*"))


@pytest.mark.usefixtures("chunks")
def test_a_seed_draws_the_same_however_the_work_is_divided(tmp_path: Path, whole: dict[str, Any]) -> None:
    draw_listops(tmp_path / "again", SHORT, SIZES, 0, 1)
    assert contents(tmp_path / "again") == whole
    draw_listops(tmp_path / "other", SHORT, SIZES, 4, 1)
    assert contents(tmp_path / "other") != whole


@pytest.mark.usefixtures("chunks")
def test_interrupted_it_goes_on_to_the_same_files(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    """Ended while it draws, and again when all is written; nothing that was drawn is drawn again."""
    drawn: list[tuple[str, int]] = []
    draw_example = listops.draw_example

    def counted(wanted: Expressions, seed: int, split: str, number: int, attempt: int) -> tuple[bytes, int]:
        if len(drawn) == 17:
            drawn.append(("ended", 0))
            raise KeyboardInterrupt
        drawn.extend([] if attempt else [(split, number)])
        return draw_example(wanted, seed, split, number, attempt)

    monkeypatch.setattr(listops, "draw_example", counted)
    assert prepare.run(*FLAGS) == 130
    with monkeypatch.context() as context:
        context.setattr(Parts, "remove", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert prepare.run(*FLAGS) == 130
    assert "seed: found 0, expected 1 Nothing was changed: repeat the command that began it" in prepare.refuse(
        *FLAGS, "--seed", 1
    )
    assert prepare.run(*FLAGS) == 0
    assert contents(prepare.out) == whole
    assert len(drawn) == 17 + 1 + 40 - 14, "two parts of seven were whole"


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
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = {b"data": PIXELS, b"labels": LABELS, b"batch_label": name.encode()}
        (batches / name).write_bytes(pickle.dumps(data, protocol=2))
    pictures = folder / "pathfinder32" / "curv_contour_length_14"
    (pictures / "metadata").mkdir(parents=True)
    (pictures / "imgs" / "0").mkdir(parents=True)
    lines = []
    for number in range(20):
        image = np.zeros((32, 32), dtype=np.uint8)
        image[number, :] = 10 * number + 5
        Image.fromarray(image).save(pictures / "imgs" / "0" / f"sample_{number}.png")
        lines.append(f"imgs/0 sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1")
    (pictures / "metadata" / "0.npy").write_text("\n".join(lines) + "\n")
    return folder


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
LABELS = [0, 1, 2, 3, 4, 9]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            folder = tmp_path / "imdb" / split / label
            folder.mkdir(parents=True)
            for number in range(10):
                (folder / f"{number}_7.txt").write_text(f"a {label} film<br /><br />é {number} " * 3)
    return tmp_path / "imdb"


def test_a_release_is_taken_as_it_is(release: Path, prepare: Prepare) -> None:
    stored = prepare("listops", "--release", release)
    assert [examples(stored, split)[5] for split in SPLITS] == [(bytes([11, n, 5, 14]), 5) for n in range(3)]
    assert len(stored.manifest.warnings) == 3, "of other sizes than the official ones"


def test_pairs_are_bytes_and_what_is_cut_is_said(release: Path, prepare: Prepare) -> None:
    stored = prepare("retrieval", "--release", release, "--length", 6)
    assert "8 cut" in prepare.capsys.readouterr().out
    split = stored.split("train")
    assert [bytes(split.tokens(3, sequence)) for sequence in (0, 1)] == [b"train ", b"bar 3"]
    assert split.labels.tolist() == [0, 1] * 4
    assert split.lengths.tolist() == [[6, 5]] * 8
    assert "sequences have at most 6 bytes (--length), the Long Range Arena's 4,000" in stored.manifest.warnings


def test_reviews_are_bytes(reviews: Path, prepare: Prepare) -> None:
    stored = prepare("text", "--imdb", reviews, "--length", 12)
    assert [len(stored.split(split)) for split in SPLITS] == [18, 2, 20]
    assert {tokens for tokens, _ in examples(stored, "test")} == {b"a pos film<b", b"a neg film<b"}
    assert any("at most 12 bytes (--length)" in text for text in stored.manifest.warnings)
    whole = prepare("text", "--imdb", reviews)
    assert not any("--length" in text for text in whole.manifest.warnings)
    assert "é".encode() in examples(whole, "train")[0][0]


def test_pictures_are_grey(release: Path, prepare: Prepare) -> None:
    stored = prepare("image", "--cifar", release)
    assert [len(stored.split(split)) for split in SPLITS] == [27, 3, 6]
    red, green, blue = PIXELS.reshape(-1, 3, 1024).astype(float).transpose(1, 0, 2)
    wanted = 0.2989 * red + 0.5870 * green + 0.1140 * blue
    found = np.stack([stored.split("test").tokens(number) for number in range(6)]).astype(float)
    assert np.abs(found - wanted).max() <= 1
    assert convert_to_grey(np.full((1, 3072), 255, dtype=np.uint8)).tolist() == [[255] * 1024]


def test_the_releases_pictures_of_paths(release: Path, prepare: Prepare) -> None:
    """In the folder that it unpacks to, too; empty ones are left out."""
    outer = release.parent / "outer" / "lra_release"
    (release / "pathfinder32" / "curv_contour_length_14" / "imgs" / "0" / "sample_3.png").write_bytes(b"")
    shutil.copytree(release, outer)
    stored = prepare("pathfinder", "--release", outer.parent)
    assert [len(stored.split(split)) for split in SPLITS] == [15, 2, 2]
    for split in SPLITS:
        for tokens, label in examples(stored, split):
            image = np.frombuffer(tokens, np.uint8).reshape(32, 32)
            (row,) = np.flatnonzero(image.any(1))
            assert image[row, 0] == 10 * row + 5
            assert label == row % 2
    assert "1 picture of the release without content left out" in stored.manifest.warnings


def test_paths_are_drawn(prepare: Prepare) -> None:
    stored = prepare("pathfinder", "--contour", 3, "--no_distractors", *FEW)
    said = prepare.capsys.readouterr().out
    assert "not the Long Range Arena's Pathfinder: paths of 3 dashes without distractors; the Long Range" in said
    assert "train has 4 examples, the official one has 160,000" in said
    assert stored.split("train").lengths.tolist() == [[1024]] * 4
    assert not (prepare.out / "parts").exists()
    stored = prepare("pathfinder", *FEW)
    assert "drawn here with the Long Range Arena's parameters" in stored.manifest.warnings[0]


def test_what_is_missing_is_cut_from_training(release: Path, prepare: Prepare) -> None:
    (release / "tsv_data" / "new_aan_pairs.test.tsv").unlink()
    stored = prepare("retrieval", "--release", release)
    assert [len(stored.split(split)) for split in SPLITS] == [7, 8, 1]
    assert stored.manifest.settings["carved"] == ["test"]
    assert "test cut from the training examples: the source has none of its own" in stored.manifest.warnings


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("/tmp/never-made-by-a-pickle"),))


LISTS, PAIRS = "listops-1000/basic_val.tsv", "tsv_data/new_aan_pairs.eval.tsv"
BATCH = "cifar-10-batches-py/data_batch_3"
PICTURE, METADATA = (
    f"pathfinder32/curv_contour_length_14/{name}" for name in ("imgs/0/sample_3.png", "metadata/0.npy")
)
Damage = Callable[[Path], object]


def swap(old: str, new: str) -> Damage:
    return lambda path: path.write_text(path.read_text().replace(old, new))


def pickled(**data: object) -> Damage:
    return lambda path: path.write_bytes(pickle.dumps(data))


@pytest.mark.parametrize(
    ("words", "name", "damage", "expected"),
    [
        ("listops", LISTS, swap("\t5", "\tx"), "basic_val.tsv, line 7: expected a digit as label, found 'x'"),
        ("retrieval", PAIRS, swap("\tbar 7", ""), "new_aan_pairs.eval.tsv, line 8: expected label, id1, id2, text1,"),
        ("retrieval", "tsv_data", shutil.rmtree, "new_aan_pairs.train.tsv"),
        ("retrieval", PAIRS, lambda path: path.write_text(""), "found 8 / 0 / 8"),
        ("image", BATCH, pickled(data=Evil(), labels=[]), "which no file of CIFAR-10 does"),
        (
            "image", BATCH, lambda path: path.write_bytes(path.read_bytes()[:100]),
            "data_batch_3: expected a file of CIFAR-10, found something else",
        ),
        ("image", BATCH, pickled(data=PIXELS, labels=[0, 1, 2, 3, 4, 10]), "and classes from 0 to 9"),
        (
            "pathfinder", PICTURE, lambda path: Image.fromarray(np.zeros((31, 32), np.uint8)).save(path),
            "sample_3.png: expected 32 x 32 pixels, found 31 x 32",
        ),
        ("pathfinder", PICTURE, Path.unlink, "sample_3.png: expected a PNG"),
        ("pathfinder", METADATA, swap("0 0 1.0", ""), "0.npy, line 1: expected a folder, a file"),
    ],
)  # fmt: skip
def test_damaged_sources_are_refused_and_nothing_is_written(
    words: str, name: str, damage: Damage, expected: str, release: Path, prepare: Prepare
) -> None:
    damage(release / name)
    source = "--cifar" if words.startswith("image") else "--release"
    assert expected in prepare.refuse(*words.split(), source, release)
    assert not prepare.out.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "listops --longer_than 3 --shorter_than 4 --workers 1",
            "none of 200 expressions with --depth 10 and --most_values 10 had",
        ),
        ("listops --release . --depth 3", "--release: its examples are taken as they are: expected no flag"),
        ("pathfinder --size 48", "--size: expected one of 32, 64, 128, 256, found 48"),
        ("image --cifar nowhere", "nowhere: expected a folder with data_batch_1 or cifar-10-batches-py/data_batch_1"),
    ],
)
def test_mistakes(words: str, expected: str, prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listops, "_MOST_ATTEMPTS", 200)
    assert expected in prepare.refuse(*words.split())
    assert not prepare.out.exists()


def test_stored_data_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prepared data: run `python experiments/lra/prepare\.py listops` first"):
        open_stored(tmp_path, "listops")
    draw_listops(tmp_path, SHORT, SIZES, 0, 1)
    with pytest.raises(UserError, match="expected data of text, found that of listops"):
        open_stored(tmp_path, "text")
    tokens = tmp_path / "train.tokens.bin"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(UserError, match=r"train\.tokens\.bin: is missing or was modified"):
        open_stored(tmp_path, "listops")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"warnings": ["none"]}))
    with pytest.raises(UserError, match=r"manifest\.json: modified after it was written"):
        open_stored(tmp_path, "listops")
