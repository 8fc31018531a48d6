"""A dataset whose rows stay in parts: the same rows, and one error for each file that is wrong."""

import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corpora import open_verified, write_unified
from hypothesis import given
from hypothesis import strategies as st
from small import LENGTH, documents_of

from nystromformer.data import index
from nystromformer.data.dataset import open_dataset
from nystromformer.data.index import PartedArray, index_of, open_index
from nystromformer.data.manifest import splits_file, tokens_file
from nystromformer.data.preprocessing.build import TRAIN, DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp

SETTINGS = DatasetSettings(LENGTH, ("made-up",), TRAIN, 300)
PARTS = 6


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of several files, the last of which has too little for a row."""
    folder, documents = (
        tmp_path_factory.mktemp("corpora"),
        [replace(each, group=each.id) for each in documents_of("train", 60, 0)],
    )
    write_unified(folder, "made-up", [*documents, Document("last", "last", ("One.",))], with_groups=False, files=PARTS)
    return folder


@pytest.fixture(scope="module")
def merged(corpora: Path) -> Path:
    build_dataset(corpora, corpora / "merged", SETTINGS)
    return corpora / "merged"


@pytest.fixture(scope="module")
def in_parts(corpora: Path) -> Path:
    build_dataset(corpora, corpora / "in-parts", replace(SETTINGS, in_parts=True))
    return corpora / "in-parts"


@pytest.fixture
def own(in_parts: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(in_parts, tmp_path / "own"))


def test_the_rows_are_those_of_merged_files(merged: Path, in_parts: Path) -> None:
    assert sorted(path.name for path in in_parts.iterdir() if path.suffix in (".bin", ".npy")) == [
        "train.parts.npy", "validation.parts.npy",
    ]  # fmt: skip
    one, other = open_verified(merged), pickle.loads(pickle.dumps(open_verified(in_parts)))  # noqa: S301  # our own
    for expected, found in ((one.train, other.train), (one.validation, other.validation)):
        assert len(found) == len(expected) > PARTS
        numbers = np.random.default_rng(0).integers(len(found), size=(5, 7))
        for array, those in ((found.tokens, expected.tokens), (found.splits, expected.splits)):
            assert isinstance(array, PartedArray)
            assert (array.shape, array.dtype) == (those.shape, those.dtype)
            for key in (slice(None), slice(3, None, 2), 4, numbers, numbers[0], numbers[:, :0]):
                assert (array[key] == those[key]).all()
                assert array[key].shape == those[key].shape
            assert (np.resize(array, those.shape) == those).all()
            with pytest.raises(IndexError):
                array[len(those)]


@given(st.lists(st.integers(0, 4), max_size=8), st.randoms(use_true_random=False))
def test_any_sizes_of_parts(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], draw: random.Random) -> None:
    """Empty ones anywhere."""
    folder = tmp_path_factory.mktemp("parts")
    whole = np.arange(sum(sizes) * 3, dtype="<u2").reshape(-1, 3)
    parts, first = [], 0
    (folder / "parts").mkdir()
    for number, rows in enumerate(sizes):
        content = whole[first : first + rows].tobytes()
        (folder / "parts" / tokens_file(f"{number}.train")).write_bytes(content)
        parts.append((f"{number}", rows, FileStamp(len(content), "0" * 64), FileStamp(0, "0" * 64)))
        first += rows
    (folder / "index.npy").write_bytes(index_of(parts))
    array = PartedArray(folder, "train", open_index(folder / "index.npy"), tokens_file, whole.dtype, whole.shape)
    assert (array[:] == whole).all()
    numbers = np.array([draw.randrange(len(whole)) for _ in range(5)] if len(whole) else [], dtype=np.int64)
    assert (array[numbers] == whole[numbers]).all()


def test_few_files_are_open(in_parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts there are."""
    monkeypatch.setattr(index, "_MOST_OPEN", 2)
    dataset = open_dataset(in_parts)
    before = len(os.listdir("/proc/self/fd"))
    assert len(dataset.train.tokens[:]) + len(dataset.train.splits[:]) == 2 * len(dataset.train)
    # Two of the tokens, two of the splits, and the index.
    assert len(os.listdir("/proc/self/fd")) <= before + 5


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "file", "expected"),
    [
        (Path.unlink, tokens_file, "no such file, expected .* bytes as in the index of its parts"),
        (truncate, splits_file, "bytes, expected .* bytes as in the index of its parts"),
    ],
)
def test_a_part_is_checked_when_it_is_read(
    own: Path, damage: Callable[[Path], None], file: Callable[[str], str], expected: str
) -> None:
    path = own / "parts" / file("made-up-00001.train")
    damage(path)
    train = open_dataset(own).train
    assert len(train.tokens[:2]) == len(train.splits[:2]) == 2
    with pytest.raises(UserError, match=f"{path}: .*{expected}"):
        (train.tokens[:], train.splits[:])


def test_what_was_changed(own: Path) -> None:
    path = next(path for path in sorted(own.glob("parts/*.validation.tokens.bin")) if path.stat().st_size)
    change(path)
    with pytest.raises(UserError, match=f"{path}: expected SHA-256"):
        open_verified(own)
    path = own / "train.parts.npy"
    change(path)
    with pytest.raises(UserError, match=f"{path}: expected SHA-256"):
        open_dataset(own)
