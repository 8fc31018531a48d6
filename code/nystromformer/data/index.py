"""Rows of a split that stay in the files of its parts: an index of the parts, and their rows as one array."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.manifest import MAKE_ANEW, PARTS_FOLDER, check_size, splits_file, tokens_file
from nystromformer.files.writing import FileStamp

_PART = np.dtype([
    ("name", "S120"), ("first", "<i8"), ("rows", "<i8"),
    ("tokens_size", "<i8"), ("tokens_sha256", "V32"), ("splits_size", "<i8"), ("splits_sha256", "V32"),
])  # fmt: skip
"""A part in the index: its name, its first row's number, how many it has, and its files' stamps."""
_MOST_OPEN = 64
"""Parts of an array that are mapped at a time: each holds an open file, of which a process may often have 1,024, and
what was read of it counts as the process' memory."""

FileOf = Callable[[str], str]
"""The name of a kind of file, by what is before it: `tokens_file` or `splits_file`."""
Index = NDArray[np.void]


def index_of(parts: Iterable[tuple[str, int, FileStamp, FileStamp]]) -> bytes:
    """The content of a split's index, from each part's name, rows, and stamps of its tokens and its splits."""
    entries, first = [], 0
    for name, rows, *stamps in parts:
        facts = [fact for stamp in stamps for fact in (stamp.size, bytes.fromhex(stamp.sha256))]
        entries.append((name.encode(), first, rows, *facts))
        first += rows
    content = io.BytesIO()
    np.save(content, np.array(entries, dtype=_PART), allow_pickle=False)
    return content.getvalue()


def open_index(path: Path) -> Index:
    """An index, mapped into memory."""
    index: Index = np.load(path, mmap_mode="r", allow_pickle=False)
    return index


def files_of(index: Index, split: str) -> Iterator[tuple[str, FileStamp]]:
    """All files of a split with their stamps, named from the dataset's folder on, part by part."""
    for entry in index:
        for file_of in (tokens_file, splits_file):
            yield _file(entry, split, file_of)


def _file(entry: Any, split: str, file_of: FileOf) -> tuple[str, FileStamp]:
    kind = "tokens" if file_of is tokens_file else "splits"
    name = file_of(f"{entry['name'].decode()}.{split}")
    return f"{PARTS_FOLDER}/{name}", FileStamp(int(entry[f"{kind}_size"]), entry[f"{kind}_sha256"].tobytes().hex())


class PartedArray:
    """The tokens (R, N) or the splits (R,) of a split in parts, read-only. Parts are mapped at their first use.

    Indexing by a number, numbers (B,) or a slice gives what it gives of an array in memory; only those rows are read.

    Raises (on indexing):
        IndexError: there is no such row.
        UserError: a part's file is missing, or not of the size in the index.
    """

    def __init__(
        self, folder: Path, split: str, index: Index, file_of: FileOf, dtype: np.dtype, shape: tuple[int, ...]
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._firsts: NDArray[np.int64] = np.array(index["first"])

        @lru_cache(_MOST_OPEN)
        def rows_of(part: int) -> NDArray[Any]:
            name, stamp = _file(index[part], split, file_of)
            check_size(folder / name, stamp, "the index of its parts", MAKE_ANEW)
            return np.memmap(folder / name, dtype, "r", shape=(int(index[part]["rows"]), *shape[1:]))

        self._rows_of = rows_of

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice | NDArray[np.integer]) -> NDArray[Any]:
        numbers = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key, dtype=np.int64)
        flat = numbers.reshape(-1)
        if len(flat) and not (flat.min() >= 0 and flat.max() < len(self)):
            raise IndexError(f"expected rows from 0 to {len(self) - 1}, found one from {flat.min()} to {flat.max()}")
        # Of parts that begin at one row the last one has it: others are empty.
        parts = np.searchsorted(self._firsts, flat, side="right") - 1
        out = np.empty((len(flat), *self.shape[1:]), self.dtype)
        for part in np.unique(parts).tolist():
            here = parts == part
            out[here] = self._rows_of(part)[flat[here] - self._firsts[part]]
        return out.reshape(numbers.shape + self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)
