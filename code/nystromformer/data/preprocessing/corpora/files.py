"""A corpus' files: finding them, dividing them into chunks of like size, and reading lines from a chunk.

How a corpus is divided depends on its files alone, so what is made of it does not depend on the number of processes.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from nystromformer.data.preprocessing.corpus import MAX_LINE
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


def find_files(folder: Path, pattern: str, leave_out: Iterable[Path] = ()) -> tuple[list[str], list[str]]:
    """Names below `folder` of the files that match a pattern, compressed or not, and of the others; both sorted. Links
    are followed.

    Hidden files, what belongs to the project beside the corpus (preprocess.py, and README.md next to it) and folders of
    a preprocessing run, which hold what was made of a corpus, are left out.

    Raises:
        UserError: the folder is missing, or a file is there compressed, too.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: expected the folder with the corpus' files, found none: put them there, or name their folder "
            "with --source"
        )
    script = folder / "preprocess.py"
    own = (script, folder / "README.md") if script.is_file() else ()
    left_out = {path.resolve() for path in (*own, *leave_out)}
    names, others = list[str](), list[str]()
    for parent, below, files in os.walk(folder, followlinks=True):
        here = Path(parent)
        below[:] = [
            name
            for name in below
            if not (_is_left_out(here / name, left_out) or (here / name / PARTS / MARK).is_file())
        ]
        for path in (here / name for name in files):
            if not _is_left_out(path, left_out):
                fits = any(fnmatch.fnmatch(path.name, pattern + ending) for ending in ("", *_COMPRESSED))
                (names if fits else others).append(path.relative_to(folder).as_posix())
    names.sort()
    others.sort()
    all_names = set(names)
    for name in names:
        stem, ending = os.path.splitext(name)
        if ending in _COMPRESSED and stem in all_names:
            raise UserError(f"{folder}: expected each file once, found {stem} and {name}: remove one of them")
    return names, others


def _is_left_out(path: Path, left_out: set[Path]) -> bool:
    return path.name.startswith(".") or (path.name in {each.name for each in left_out} and path.resolve() in left_out)


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

    name: below the corpus' folder; end: where its range ends.
    """

    def __init__(self, folder: Path, name: str, chunk: Chunk) -> None:
        self.name = name
        self.path = folder / name
        self.end = chunk.end
        self.begin = chunk.begin

    def lines(self, past_end: bool = False) -> Iterator[tuple[int, bytes]]:
        """Offsets and lines, without line ends, from the first one that begins in the range.

        Args:
            past_end: go on after the range's end, for a document that begins before it.

        Raises:
            UserError: a line is too long to be one, or the file cannot be read.
        """
        try:
            with _open(self.path) as file:
                yield from self._lines(file, past_end)
        except (EOFError, zlib.error) as error:
            raise UserError(f"{self.path}: the compressed file is damaged or cut off: {error}") from error
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror or error}") from error

    def _lines(self, file: BinaryIO, past_end: bool) -> Iterator[tuple[int, bytes]]:
        offset = self.begin
        if offset:
            # the line that crosses the beginning belongs to the range before
            file.seek(offset - 1)
            crossing = len(file.readline(MAX_LINE))
            if crossing == MAX_LINE:
                raise self._too_long(offset - 1)
            offset += crossing - 1
        while past_end or self.end is None or offset < self.end:
            line = file.readline(MAX_LINE)
            if not line:
                break
            if len(line) == MAX_LINE:
                raise self._too_long(offset)
            if not offset and line.startswith(b"\xef\xbb\xbf"):
                yield 0, line[3:].rstrip(b"\r\n")
            else:
                yield offset, line.rstrip(b"\r\n")
            offset += len(line)

    def _too_long(self, offset: int) -> UserError:
        return self.error(offset, f"a line longer than {MAX_LINE >> 20} MiB, which cannot be a line of text")

    def error(self, offset: int, problem: str) -> UserError:
        """A mistake in the line at an offset, with the line's number."""
        line = 1
        with _open(self.path) as file:
            left = offset
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                line += block.count(b"\n")
                left -= len(block)
        return UserError(f"{self.path}, line {line}: {problem}")


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path))
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return path.open("rb")
