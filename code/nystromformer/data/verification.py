"""Whether a dataset's rows are those that were written: read once for each content, and remembered.

`verified.json` beside the dataset, or in another folder where that cannot be written, has the size, times and inode of
each file that was verified, and the SHA-256 of the manifest. A file of which one of these differs is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nystromformer.data.dataset import Dataset
from nystromformer.data.manifest import MAKE_ANEW, MANIFEST_FILE, SPLITS
from nystromformer.errors import UserError
from nystromformer.files.reading import read_json
from nystromformer.files.writing import sha256_of, temporary_name

MEMORY_FILE = "verified.json"
_MOST_REMEMBERED = 256
_BLOCK_BYTES = 1 << 22

Entry = dict[str, Any]


class VerificationStopped(Exception):
    """Nobody waits for the result any more."""


class Verification:
    """Compares the SHA-256 of the files of a dataset's splits with its manifest. Rows in parts are compared with their
    index on demand alone, and that is not remembered: there may be many terabytes of them.

    Args:
        other: folder to remember in where the dataset's own cannot be written; None: remember nothing there.
    """

    def __init__(self, dataset: Dataset, splits: Sequence[str] = SPLITS, other: Path | None = None) -> None:
        self._folder = dataset.folder
        rows = {"train": dataset.train, "validation": dataset.validation}
        self._indexes = {split: index for split in splits if (index := rows[split].index) is not None}
        self._stamps = {name: stamp for split in splits for name, stamp in dataset.manifest.split(split).files.items()}
        self._memory = [folder / MEMORY_FILE for folder in (dataset.folder, other) if folder is not None]
        self._manifest_sha256 = sha256_of(dataset.folder / MANIFEST_FILE)

    @property
    def size(self) -> int:
        """Bytes of the files that have to be read."""
        return sum(self._stamps[name].size for name in self._unverified_files())

    def run(self, force: bool = False, stop: threading.Event | None = None) -> None:
        """Read the files that were not verified yet, and remember them.

        Args:
            force: read all files, parts included.
            stop: ends the reading, when it is set.

        Raises:
            UserError: a file is not what the manifest says.
            VerificationStopped: `stop` was set.
        """
        for name in self._stamps if force else self._unverified_files():
            before = self._entry(name)
            self._verify(name, self._stamps[name].sha256, stop or threading.Event())
            if self._entry(name) == before:
                self._remember(before)
        for split, index in self._indexes.items() if force else ():
            for name, stamp in index.files(split):
                self._verify(name, stamp.sha256, stop or threading.Event())

    def _unverified_files(self) -> list[str]:
        verified = [entry for path in self._memory for entry in _read_memory(path)]
        return [name for name in self._stamps if self._entry(name) not in verified]

    def _entry(self, name: str) -> Entry:
        with _reading(self._folder / name) as path:
            status = path.stat()
        return {
            "manifest": self._manifest_sha256,
            "file": name,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "ctime_ns": status.st_ctime_ns,
            "inode": status.st_ino,
        }

    def _verify(self, name: str, expected: str, stop: threading.Event) -> None:
        digest = hashlib.sha256()
        with _reading(self._folder / name) as path, path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                if stop.is_set():
                    raise VerificationStopped
                digest.update(block)
        if digest.hexdigest() != expected:
            raise UserError(
                f"{path}: expected SHA-256 {expected} as in the manifest, found {digest.hexdigest()}: the file was "
                f"changed since it was made. {MAKE_ANEW}"
            )

    def _remember(self, entry: Entry) -> None:
        """Of two processes that write at once, one's entry may be lost, which is then verified again."""
        for path in self._memory:
            entries = [*(old for old in _read_memory(path) if old != entry), entry][-_MOST_REMEMBERED:]
            temporary = path.with_name(temporary_name(path.name))
            try:
                temporary.write_text(json.dumps(entries, indent=1))
                os.replace(temporary, path)
                return
            except OSError:
                with suppress(OSError):
                    temporary.unlink()


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    try:
        yield path
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_memory(path: Path) -> list[Entry]:
    """What a file says was verified; nothing where it is missing or damaged, as that costs only time."""
    try:
        entries = read_json(path)
    except (OSError, UserError):
        return []
    return entries if isinstance(entries, list) else []
