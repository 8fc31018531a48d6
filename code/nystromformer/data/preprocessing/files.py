"""A corpus' files: finding them, dividing them into chunks of like size, and reading lines from a chunk.

How a corpus is divided depends on its files alone, so what is made of it does not depend on the number of processes.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from nystromformer.errors import UserError
from nystromformer.files.parts import MARK, PARTS
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 24
_COMPRESSED = (".bz2", ".gz")


@dataclass(frozen=True)
class OpenFile:
    """A file of a corpus, or a range of its bytes, of which the lines (documents, where a format marks them) that begin
    in it are meant.

    name: below the corpus' folder.
    """

    folder: Path
    name: str
    begin: int = 0
    end: int | None = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / self.name

    def lines(self, past_end: bool = False) -> Iterator[tuple[int, bytes]]:
        """Offsets and lines, without line ends and byte order mark, from the first one that begins in the range.

        Args:
            past_end: go on after the range's end, for a document that begins before it.
        """
        try:
            with self._open() as file:
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
        with self._open() as file:
            line = 1
            while file.tell() < offset:
                file.readline()
                line += 1
        return UserError(f"{self.path}, line {line}: {problem}")

    def _open(self) -> BinaryIO:
        if self.path.suffix == ".bz2":
            return cast(BinaryIO, bz2.open(self.path))
        return cast(BinaryIO, gzip.open(self.path)) if self.path.suffix == ".gz" else self.path.open("rb")


def find_files(folder: Path, pattern: str, looks: str) -> list[str]:
    """Names below `folder` of the files that match a pattern, compressed or not, sorted. Links are followed.

    Hidden files, preprocess.py with the README.md beside it, and folders that preprocessing fills are left out.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: expected the folder with the corpus' files, found none: name it with --source")
    own = ("preprocess.py", "README.md") if (folder / "preprocess.py").is_file() else ()
    names, others = list[str](), list[str]()
    for parent, below, files in os.walk(folder, followlinks=True):
        here = Path(parent)
        below[:] = [name for name in below if not (name.startswith(".") or (here / name / PARTS / MARK).is_file())]
        for file in files:
            if not file.startswith(".") and not (here == folder and file in own):
                fits = any(fnmatch.fnmatch(file, pattern + ending) for ending in ("", *_COMPRESSED))
                (names if fits else others).append((here / file).relative_to(folder).as_posix())
    if names and others:
        log.info("%s: %s not read, such as %s", folder, number_of(len(others), "other file"), min(others))
    if not names:
        instead = f"found others, such as {min(others)}" if others else "found none"
        raise UserError(f"{folder}: expected {looks}, {instead}. Put the corpus there, or name its folder: --source")
    return sorted(names)


def divide(folder: Path, names: Sequence[str], cut: bool, chunk_bytes: int = CHUNK_BYTES) -> list[list[OpenFile]]:
    """Divide files into chunks of about `chunk_bytes`, in order: several files, or a range of one.

    Args:
        cut: whether a larger file may be divided; a compressed one never is.
    """
    chunks: list[list[OpenFile]] = []
    room = -1
    for name in names:
        size = (folder / name).stat().st_size
        if cut and size > chunk_bytes and not name.endswith(_COMPRESSED):
            parts = -(-size // chunk_bytes)
            bounds = [size * part // parts for part in range(parts + 1)]
            chunks += [[OpenFile(folder, name, begin, end)] for begin, end in pairwise(bounds)]
            room = -1
        elif size <= room:
            chunks[-1].append(OpenFile(folder, name))
            room -= size
        else:
            chunks.append([OpenFile(folder, name)])
            room = chunk_bytes - size
    return chunks
