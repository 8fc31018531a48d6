"""Rows of a split that lie in many files, which nobody merges: an index of the files, and the rows as one array."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.manifest import MAKE_ANEW, PARTS_FOLDER, check_size, splits_file, tokens_file
from nystromformer.errors import UserError
from nystromformer.files.writing import FileStamp

_LONGEST_NAME = 120
_PART = np.dtype([
    ("name", f"S{_LONGEST_NAME}"), ("first", "<i8"), ("rows", "<i8"),
    ("tokens_size", "<i8"), ("tokens_sha256", "V32"), ("splits_size", "<i8"), ("splits_sha256", "V32"),
])  # fmt: skip
"""A part in the index: its name, its first row's number, how many it has, and its files' stamps."""
_MOST_OPEN = 64
"""Parts of an array that are mapped at a time: each holds an open file, of which a process may often have 1,024, and
what was read of it counts as the process' memory."""

FileOf = Callable[[str], str]
"""The name of a kind of file, by what is before it: `tokens_file` or `splits_file`."""


def index_of(parts: Iterable[tuple[str, int, FileStamp, FileStamp]]) -> bytes:
    """The content of a split's index.

    Args:
        parts: of each its name, its rows, and the stamps of its tokens and its splits.

    Raises:
        UserError: a name is too long.
    """
    entries, first = [], 0
    for name, rows, *stamps in parts:
        if len(name.encode()) > _LONGEST_NAME:
            raise UserError(f"--in_parts: {name}: expected a name of at most {_LONGEST_NAME} bytes: rename the corpus")
        facts = [fact for stamp in stamps for fact in (stamp.size, bytes.fromhex(stamp.sha256))]
        entries.append((name.encode(), first, rows, *facts))
        first += rows
    content = io.BytesIO()
    np.save(content, np.array(entries, dtype=_PART), allow_pickle=False)
    return content.getvalue()


class Index:
    """An index that is mapped into memory.

    Raises:
        UserError: it is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._parts = np.load(path, mmap_mode="r", allow_pickle=False)
            if self._parts.dtype != _PART or self._parts.ndim != 1:
                raise ValueError(f"found {self._parts.dtype}")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: expected an index of parts: {error}. {MAKE_ANEW}") from None
        self.firsts: NDArray[np.int64] = np.array(self._parts["first"])

    def __len__(self) -> int:
        return len(self._parts)

    def rows(self, part: int) -> int:
        """How many a part has."""
        return int(self._parts[part]["rows"])

    def file(self, part: int, split: str, file_of: FileOf) -> tuple[str, FileStamp]:
        """A part's file of a kind, from the dataset's folder on, and its stamp."""
        entry, kind = self._parts[part], "tokens" if file_of is tokens_file else "splits"
        name = f"{entry['name'].decode()}.{split}"
        stamp = FileStamp(int(entry[f"{kind}_size"]), entry[f"{kind}_sha256"].tobytes().hex())
        return f"{PARTS_FOLDER}/{file_of(name)}", stamp

    def files(self, split: str) -> Iterator[tuple[str, FileStamp]]:
        """All files of a split, part by part."""
        for part in range(len(self)):
            for file_of in (tokens_file, splits_file):
                yield self.file(part, split, file_of)


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
        self._folder, self._split, self._index, self._file_of = folder, split, index, file_of
        self._part = lru_cache(_MOST_OPEN)(self._map)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice | NDArray[np.integer]) -> NDArray[Any]:
        numbers = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key, dtype=np.int64)
        flat = numbers.reshape(-1)
        if len(flat) and not (flat.min() >= 0 and flat.max() < len(self)):
            raise IndexError(f"expected rows from 0 to {len(self) - 1}, found one from {flat.min()} to {flat.max()}")
        # Of parts that begin at one row the last one has it: others are empty.
        parts = np.searchsorted(self._index.firsts, flat, side="right") - 1
        out = np.empty((len(flat), *self.shape[1:]), self.dtype)
        for part in np.unique(parts).tolist():
            here = parts == part
            out[here] = self._part(part)[flat[here] - self._index.firsts[part]]
        return out.reshape(numbers.shape + self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def _map(self, part: int) -> NDArray[Any]:
        name, stamp = self._index.file(part, self._split, self._file_of)
        check_size(self._folder / name, stamp, "the index of its parts", MAKE_ANEW)
        return np.memmap(self._folder / name, self.dtype, "r", shape=(self._index.rows(part), *self.shape[1:]))
