"""Folders of Parquet files to predict, on this machine or in an S3 object store."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nystromformer.errors import UserError, first_line
from nystromformer.tasks.documents.table import Table, parquet_refusal, parquet_table

REMOTE = "s3://"
_AT_ONCE = 16
"""Files whose ends are read: of an object store each takes a few round trips."""


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

    def described(self, columns: Sequence[str]) -> tuple[list[int], str]:
        """Rows of each file, and a digest of all names, sizes and footers, which hold where every column of a file is
        and its bounds.

        Raises:
            UserError: one is no Parquet file, or has other columns than the first one.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            footers = list(pool.map(self._footer, self.names))
        expected: list[str] = []
        digest = hashlib.sha256()
        for name, (size, schema, metadata) in zip(self.names, footers, strict=True):
            found = [f"{column}: {schema.field(column).type}" for column in columns if column in schema.names]
            if (expected := expected or found) != found:
                raise UserError(
                    f"{self.where(name)}: expected the columns of {self.names[0]} ({', '.join(expected)}), found "
                    f"{', '.join(found) or 'none of them'}: write the files with one schema, or put them into folders "
                    "of their own"
                )
            digest.update(json.dumps([name, size, metadata.to_dict()], default=str).encode())
        return [metadata.num_rows for _, _, metadata in footers], digest.hexdigest()

    def _footer(self, name: str) -> tuple[int, Any, Any]:
        """Size, schema and metadata of a file; nothing else of it is read."""
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        try:
            with self._open(name) as file, parquet.ParquetFile(file) as content:
                return file.size(), content.schema_arrow, content.metadata
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
