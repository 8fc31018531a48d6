"""A dataset's rows are verified once for each content."""

import os
import shutil
from pathlib import Path

import pytest

from nystromformer.data import verification
from nystromformer.data.dataset import open_dataset
from nystromformer.data.verification import MEMORY_FILE, verify
from nystromformer.errors import UserError

FILES = ["train.tokens.bin", "train.splits.bin", "validation.tokens.bin", "validation.splits.bin"]


@pytest.fixture
def folder(dataset_folder: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns(MEMORY_FILE)
    return Path(shutil.copytree(dataset_folder, tmp_path / "data", ignore=ignored))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read whole, as they are."""
    names: list[str] = []
    real = verification.check_sha256

    def counted(path: Path, expected: str) -> None:
        names.append(path.name)
        real(path, expected)

    monkeypatch.setattr(verification, "check_sha256", counted)
    return names


def flip(path: Path, at: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_each_content_is_read_once(folder: Path, read: list[str]) -> None:
    dataset = open_dataset(folder)
    verify(dataset)
    assert read == FILES
    verify(dataset)
    assert read == FILES
    verify(dataset, everything=True)
    assert read == FILES * 2
    assert not [*folder.glob("*.tmp"), *folder.glob(".*.tmp")]


@pytest.mark.parametrize("name", FILES[::3])
def test_a_changed_byte_is_found_though_size_and_time_are_the_same(folder: Path, read: list[str], name: str) -> None:
    dataset = open_dataset(folder)
    verify(dataset)
    read.clear()
    status = (folder / name).stat()
    flip(folder / name)
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{name}: expected SHA-256 \w{{64}}, found \w{{64}}"):
            verify(dataset)
    assert read == [name] * 2
    flip(folder / name)
    verify(dataset)


def test_a_dataset_that_cannot_be_written_to(folder: Path, tmp_path: Path, read: list[str]) -> None:
    (folder / MEMORY_FILE).mkdir()  # nothing can be renamed to it, not even by root
    other = tmp_path / "model"
    other.mkdir()
    dataset = open_dataset(folder)
    for _ in range(2):
        verify(dataset, other=other)
        assert read == FILES
    assert [path.name for path in other.iterdir()] == [MEMORY_FILE]
    verify(dataset)
    assert read == FILES * 2
    assert not [*folder.glob("*.tmp"), *folder.glob(".*.tmp")]
