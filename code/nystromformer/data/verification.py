"""Whether a dataset's rows are those that were written: read once for each content, and remembered.

What was verified is in `verified.json` beside the dataset, or where that cannot be written in another folder: of each
file its size, times and inode as they were, and the SHA-256 of the manifest that it agrees with. A file of which one of
these is another one is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nystromformer.bounded import read_json
from nystromformer.data.manifest import MANIFEST_FILE, SPLITS, Manifest
from nystromformer.data.row_files import little_endian, tokens_file
from nystromformer.errors import UserError
from nystromformer.files import sha256_of

if TYPE_CHECKING:
    from nystromformer.data.dataset import Dataset

MEMORY_FILE = "verified.json"
_MOST_REMEMBERED = 256
_BLOCK_BYTES = 1 << 22
_SECONDS_UNTIL_OLD = 24 * 3600.0
_WRITING = threading.Lock()
"""Held by the thread that writes: the temporary name is the process'."""

Entry = dict[str, Any]


class VerificationStopped(Exception):
    """Nobody waits for the result any more."""


class Verification:
    """Compares the files of a dataset's splits with its manifest: their SHA-256, and what is in them.

    Args:
        other: folder to remember in where the dataset's own cannot be written; None: remember nothing there.
    """

    def __init__(self, dataset: Dataset, splits: Sequence[str] = SPLITS, other: Path | None = None) -> None:
        self._folder = dataset.folder
        self._manifest = dataset.manifest
        self._files = [(split, name) for split in splits for name in dataset.manifest.split(split).files]
        self._memory = [folder / MEMORY_FILE for folder in (dataset.folder, other) if folder is not None]
        self._manifest_sha256 = sha256_of(dataset.folder / MANIFEST_FILE)

    @property
    def size(self) -> int:
        """Bytes of the files that are not known to be right."""
        return sum(self._manifest.split(split).files[name].size for split, name in self._unknown())

    def run(self, force: bool = False, stop: threading.Event | None = None) -> None:
        """Read what is not known to be right, and remember it.

        Args:
            force: read what is known, too.
            stop: ends the reading, when it is set.

        Raises:
            UserError: a file is not what the manifest says.
            VerificationStopped: `stop` was set.
        """
        for split, name in self._files if force else self._unknown():
            before = self._entry(name)
            self._verify(split, name, stop or threading.Event())
            if self._entry(name) == before:
                self._remember(before)

    def _unknown(self) -> list[tuple[str, str]]:
        known = [entry for path in self._memory for entry in _remembered(path)]
        return [(split, name) for split, name in self._files if self._entry(name) not in known]

    def _entry(self, name: str) -> Entry:
        try:
            status = (self._folder / name).stat()
        except OSError as error:
            raise UserError(f"{self._folder / name}: cannot be read: {error.strerror or error}") from error
        return {
            "manifest": self._manifest_sha256,
            "file": name,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "ctime_ns": status.st_ctime_ns,
            "inode": status.st_ino,
        }

    def _verify(self, split: str, name: str, stop: threading.Event) -> None:
        path, digest = self._folder / name, hashlib.sha256()
        content = _Tokens(self._manifest, split) if name == tokens_file(split) else _Splits(self._manifest, split)
        try:
            # one whole read after the other: nothing is kept in memory
            with path.open("rb", buffering=0) as file:
                while block := _block(file.read):
                    if stop.is_set():
                        raise VerificationStopped
                    digest.update(block)
                    content.add(block)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
        expected = self._manifest.split(split).files[name].sha256
        if digest.hexdigest() != expected:
            raise UserError(
                f"{path}: expected SHA-256 {expected} as in the manifest, found {digest.hexdigest()}: the file was "
                f"changed since it was made. {MAKE_ANEW}"
            )
        problem = content.problem()
        if problem is not None:
            raise UserError(f"{path}: {problem}. {MAKE_ANEW}")

    def _remember(self, entry: Entry) -> None:
        for path in self._memory:
            entries = [*(old for old in _remembered(path) if old != entry), entry][-_MOST_REMEMBERED:]
            if _write(path, entries):
                return


def _block(read: Callable[[int], bytes | None]) -> bytes:
    """The next bytes of a file, as many as a block has but for the last one: values are never torn."""
    parts, left = [], _BLOCK_BYTES
    while left and (part := read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _remembered(path: Path) -> list[Entry]:
    """What a file says was verified; nothing where it is missing or damaged, as that costs only time."""
    try:
        entries = read_json(path)
    except (OSError, UserError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _write(path: Path, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Replace what is remembered; False where the folder cannot be written. Of two processes that do, one's entry may
    be lost, which is then verified again."""
    temporary = path.with_name(f"{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    with _WRITING:
        _remove_leftovers(path, temporary)
        try:
            temporary.write_text(json.dumps(entries, indent=1))
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            return False
    return True


def _remove_leftovers(path: Path, own: Path) -> None:
    """Remove the temporary files of processes that were killed: of this machine's that are gone, and what is a day old;
    of another machine's processes nothing else can be known."""
    this_machine = f"{path.name}.{os.uname().nodename}."
    with suppress(OSError):
        for other in path.parent.glob(f"{path.name}.*.tmp"):
            pid = other.name.removeprefix(this_machine).removesuffix(".tmp")
            with suppress(OSError):
                is_old = time.time() - other.stat().st_mtime > _SECONDS_UNTIL_OLD
                is_gone = other.name.startswith(this_machine) and pid.isdecimal() and not _is_alive(int(pid))
                if other != own and (is_old or is_gone):
                    other.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


class _Tokens:
    """What is counted of token ids."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._dtype = little_endian(manifest.tokens_dtype)
        self._vocab_size = manifest.vocab_size
        self._pad = manifest.special.pad
        self._expected = manifest.split(split).padding
        self._least = self._most = self._padding = 0

    def add(self, block: bytes) -> None:
        ids = np.frombuffer(block, self._dtype)
        self._least, self._most = min(self._least, int(ids.min())), max(self._most, int(ids.max()))
        self._padding += int(np.count_nonzero(ids == self._pad))

    def problem(self) -> str | None:
        """What is wrong with the content though it is as it was written."""
        if self._least < 0 or self._most >= self._vocab_size:
            wrong = self._least if self._least < 0 else self._most
            return f"expected ids from 0 to {self._vocab_size - 1}, those of the tokenizer, found {wrong}"
        if self._padding != self._expected:
            return f"expected padding at {self._expected} positions as in the manifest, found it at {self._padding}"
        return None


class _Splits:
    """What is counted of split points."""

    def __init__(self, manifest: Manifest, split: str) -> None:
        self._dtype = little_endian(manifest.splits_dtype)
        self._length = manifest.length
        self._expected = manifest.split(split).sentence_order_rows
        self._least = self._most = self._labelled = 0

    def add(self, block: bytes) -> None:
        splits = np.frombuffer(block, self._dtype)
        self._least, self._most = min(self._least, int(splits.min())), max(self._most, int(splits.max()))
        self._labelled += int(np.count_nonzero(splits))

    def problem(self) -> str | None:
        """As of tokens."""
        if self._least < 0 or self._most >= self._length:
            wrong = self._least if self._least < 0 else self._most
            return f"expected split points below {self._length}, the length of a row, found {wrong}"
        if self._labelled != self._expected:
            return f"expected {self._expected} rows with a sentence order as in the manifest, found {self._labelled}"
        return None


MAKE_ANEW = "Copy it again if it was copied, or make the dataset again: its preprocessing command with --overwrite."
