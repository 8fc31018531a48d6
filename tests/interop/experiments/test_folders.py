"""Folders that are written whole."""

from pathlib import Path

import pytest

from nystromformer.errors import UserError
from nystromformer.interop.experiments.folders import write_folder


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def ours(folder: Path) -> str:
    (folder / "ours.txt").write_text("ours")
    return "written"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "out"


def test_a_folder_is_whole_or_not_there(place: Path) -> None:
    place.mkdir()
    before = listing(place.parent)

    def fails(folder: Path) -> None:
        ours(folder)
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        write_folder(place, fails)
    assert listing(place.parent) == before
    assert write_folder(place, ours) == "written"
    assert listing(place.parent) == ["out", "out/ours.txt", "source"]
    with pytest.raises(UserError, match="not an empty folder"):
        write_folder(place, ours)
