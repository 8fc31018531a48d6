"""A corpus' files: finding them, dividing them into chunks of like size, and reading lines from a chunk.

How a corpus is divided depends on its files alone, so what is made of it does not depend on the number of processes.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from nystromformer.errors import UserError
from nystromformer.files.parts import MARK, PARTS

CHUNK_BYTES = 1 << 24
_COMPRESSED = (".bz2", ".gz")


@dataclass(frozen=True)
class Chunk:
    """Consecutive files of a corpus, by names below its folder, or a range of bytes of a single one.

    Of a range, the lines (documents, where a format marks them) that begin in it are meant.
    """

    files: tuple[str, ...]
    size: int
    begin: int = 0
    end: int | None = None


def find_files(folder: Path, pattern: str) -> tuple[list[str], list[str]]:
    """Names below `folder` of the files that match a pattern, compressed or not, and of the others; both sorted. Links
    are followed.

    Hidden files, preprocess.py with the README.md beside it, and folders that preprocessing fills are left out.

    Raises:
        UserError: the folder is missing.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: expected the folder with the corpus' files, found none: put them there, or name their folder "
            "with --source"
        )
    own = ("preprocess.py", "README.md") if (folder / "preprocess.py").is_file() else ()
    names, others = list[str](), list[str]()
    for parent, below, files in os.walk(folder, followlinks=True):
        here = Path(parent)
        below[:] = [name for name in below if not (name.startswith(".") or (here / name / PARTS / MARK).is_file())]
        for file in files:
            if not file.startswith(".") and not (here == folder and file in own):
                fits = any(fnmatch.fnmatch(file, pattern + ending) for ending in ("", *_COMPRESSED))
                (names if fits else others).append((here / file).relative_to(folder).as_posix())
    return sorted(names), sorted(others)


def divide(folder: Path, names: Sequence[str], cut: bool, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    """Divide files into chunks of about `chunk_bytes`, in order.

    Args:
        cut: whether a larger file may be divided; a compressed one never is.
    """
    chunks: list[Chunk] = []
    group: list[str] = []
    size = 0
    for name in names:
        bytes_here = (folder / name).stat().st_size
        large = cut and bytes_here > chunk_bytes and not name.endswith(_COMPRESSED)
        if group and (large or size + bytes_here > chunk_bytes):
            chunks.append(Chunk(tuple(group), size))
            group, size = [], 0
        if large:
            parts = -(-bytes_here // chunk_bytes)
            bounds = [bytes_here * part // parts for part in range(parts + 1)]
            chunks += [Chunk((name,), b - a, a, b) for a, b in pairwise(bounds)]
        else:
            group.append(name)
            size += bytes_here
    return [*chunks, Chunk(tuple(group), size)] if group else chunks


class OpenFile:
    """A file of a chunk.

    name: below the corpus' folder; begin, end: of its range.
    """

    def __init__(self, folder: Path, name: str, chunk: Chunk) -> None:
        self.name = name
        self.path = folder / name
        self.begin, self.end = chunk.begin, chunk.end

    def lines(self, past_end: bool = False) -> Iterator[tuple[int, bytes]]:
        """Offsets and lines, without line ends and byte order mark, from the first one that begins in the range.

        Args:
            past_end: go on after the range's end, for a document that begins before it.

        Raises:
            UserError: the file cannot be read.
        """
        try:
            with _open(self.path) as file:
                offset = self.begin
                if offset:
                    # the line that crosses the beginning belongs to the range before
                    file.seek(offset - 1)
                    offset += len(file.readline()) - 1
                while past_end or self.end is None or offset < self.end:
                    if not (line := file.readline()):
                        break
                    yield offset, (line if offset else line.removeprefix(b"\xef\xbb\xbf")).rstrip(b"\r\n")
                    offset += len(line)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.path}: cannot be read, is damaged or cut off: {error}") from error

    def error(self, offset: int, problem: str) -> UserError:
        """A mistake in the line at an offset, with the line's number."""
        line = 1
        with _open(self.path) as file:
            while offset > 0 and (block := file.read(min(offset, 1 << 20))):
                line += block.count(b"\n")
                offset -= len(block)
        return UserError(f"{self.path}, line {line}: {problem}")


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path))
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return path.open("rb")
