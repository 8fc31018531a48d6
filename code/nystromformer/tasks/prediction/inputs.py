"""Folders of Parquet files to predict, on this machine or in an S3 object store."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nystromformer.errors import UserError, first_line
from nystromformer.tasks.documents.table import Table, parquet_refusal, parquet_table

REMOTE = "s3://"
_MARK_BYTES = 8
"""At a Parquet file's end: the size of its footer, and a mark."""
_TAIL_BYTES = 1 << 16
"""Read at once, since most footers are shorter."""


@dataclass(frozen=True)
class Footer:
    """The end of a Parquet file, which holds where every column of the file is and its bounds."""

    file_bytes: int
    content: bytes
    schema: Any
    rows: int


@dataclass(frozen=True)
class ParquetFolder:
    """The Parquet files of a folder; pickles. Each process opens them with its own credentials.

    Args:
        place: an absolute path, or s3://BUCKET/PREFIX.
        names: of the files, sorted.
    """

    place: str
    names: tuple[str, ...]

    def where(self, name: str) -> str:
        """What messages call a file."""
        return f"{self.place.rstrip('/')}/{name}"

    def table(self, name: str) -> Table:
        """A file as a table.

        Raises:
            UserError: it is no Parquet file, or cannot be read.
        """
        return parquet_table(self.where(name), partial(self._open, name))

    def footer(self, name: str) -> Footer:
        """What a file says of itself; nothing else of it is read.

        Raises:
            UserError: as `table`.
        """
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        try:
            with self._open(name) as file:
                size = file.size()
                tail = file.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
                length = int.from_bytes(tail[-_MARK_BYTES : -_MARK_BYTES // 2], "little") + _MARK_BYTES
                if len(tail) < length <= size:
                    tail = file.read_at(length, size - length)
            content = tail[-length:]
            found = parquet.ParquetFile(arrow.BufferReader(content))
            return Footer(size, content, found.schema_arrow, found.metadata.num_rows)
        except (arrow.ArrowException, OSError) as error:
            raise parquet_refusal(self.where(name), error) from None

    def _open(self, name: str) -> Any:
        files, base = _files_of(self.place)
        return files.open_input_file(f"{base}/{name}")


def parquet_folder(place: str) -> ParquetFolder | None:
    """The folder at a place; None where there is no folder with Parquet files on this machine. Hidden files and those
    that begin with an underscore are somebody's bookkeeping.

    Raises:
        UserError: an object store cannot be read, or has no such files there.
    """
    is_remote = place.startswith(REMOTE)
    if not is_remote:
        if not Path(place).is_dir():
            return None
        place = str(Path(place).absolute())
    arrow, fs = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.fs")
    try:
        files, base = _files_of(place)
        found = files.get_file_info(fs.FileSelector(base))
    except (OSError, arrow.ArrowException) as error:
        raise UserError(
            f"--input {place}: cannot be read: {first_line(error)}. Credentials, region and endpoint are "
            "those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, "
            "AWS_ENDPOINT_URL), of ~/.aws, or of the machine's role"
        ) from None
    names = (each.base_name for each in found if each.type == fs.FileType.File)
    parts = sorted(name for name in names if name.endswith(".parquet") and not name.startswith((".", "_")))
    if not parts and is_remote:
        raise UserError(f"--input {place}: expected Parquet files (.parquet) directly in it, found none")
    return ParquetFolder(place, tuple(parts)) if parts else None


@lru_cache(maxsize=4)
def _files_of(place: str) -> tuple[Any, str]:
    """The file system of a place, and what the place is called in it; a client of an object store serves all files."""
    fs = importlib.import_module("pyarrow.fs")
    if place.startswith(REMOTE):
        # A prefix may have characters that mean something in an address.
        base = place.removeprefix(REMOTE).rstrip("/")
        return fs.FileSystem.from_uri(f"{REMOTE}{quote(base)}")[0], base
    return fs.LocalFileSystem(), place
