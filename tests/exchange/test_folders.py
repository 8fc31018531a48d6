"""Folders that are written whole: what others put in their place meanwhile stays."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nystromformer.errors import UserError
from nystromformer.exchange.folders import write_folder


def folder_with(name: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_text(name)

    return make


def ours(folder: Path) -> None:
    (folder / "ours.txt").write_text("ours")


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("theirs"),
    "a folder": folder_with("theirs.txt"),
    "another export": lambda path: write_folder(
        path, lambda at: (at / "theirs.txt").touch(), True, path.parent / "source"
    ),
    "a FIFO": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.parent / "source"),
}


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder_with("model")(tmp_path / "source")
    return tmp_path / "out"


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_appears_meanwhile_stays(place: Path, what: str) -> None:
    def write(folder: Path) -> None:
        ours(folder)
        MEANWHILE[what](place)
        expected.extend(path for path in listing(place.parent) if ".tmp" not in path)

    expected: list[str] = []
    with pytest.raises(UserError, match=r"out: appeared, or was filled, while this command wrote; it stays as it is"):
        write_folder(place, write, False, place.parent / "source")
    assert listing(place.parent) == expected
    assert (place.parent / "source" / "model").read_text() == "model"


@pytest.mark.parametrize("what", ["a folder", "another export"])
def test_with_force_the_last_one_counts(place: Path, what: str) -> None:
    folder_with("before")(place)

    def write(folder: Path) -> None:
        ours(folder)
        if what == "another export":
            MEANWHILE[what](place)

    write_folder(place, write, True, place.parent / "source")
    assert listing(place.parent) == ["out", "out/ours.txt", "source", "source/model"]


def test_what_was_to_be_replaced_is_kept_where_its_place_is_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one with --force puts its folder there between the two renames."""
    folder_with("before")(place)
    rename = Path.rename

    def renames(self: Path, target: Path) -> Path:
        if self.name == "new" and not place.exists():
            folder_with("theirs.txt")(place)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", renames)
    with pytest.raises(UserError, match=r"it stays as it is, .* what it had before is in out\.\w{8}\. Start"):
        write_folder(place, ours, True, place.parent / "source")
    (aside,) = (path for path in place.parent.iterdir() if path.name.startswith("out."))
    assert listing(aside) == ["before"]
    assert listing(place) == ["theirs.txt"]
    assert len(list(place.parent.iterdir())) == 3


def test_an_empty_folder_is_filled_and_a_failure_leaves_nothing(place: Path) -> None:
    place.mkdir()

    def fails(folder: Path) -> None:
        ours(folder)
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        write_folder(place, fails, False, place.parent / "source")
    assert listing(place.parent) == ["out", "source", "source/model"]
    write_folder(place, ours, False, place.parent / "source")
    assert listing(place) == ["ours.txt"]
