"""Files that appear under their name only when they are whole; and locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from nystromformer.errors import UserError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and a used-up quota."""


@dataclass(frozen=True)
class FileStamp:
    """Size in bytes and SHA-256 (hexadecimal) of a file's content."""

    size: int
    sha256: str


class NewFile:
    """Binary file written under a temporary name, then synced and renamed; hashed on the way.

    A context manager: an exception inside it removes the temporary file and leaves whatever has the final name alone.
    Folders above it are made. Raises UserError where the disk is full or the place cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._hash = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> NewFile:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
        return self

    def write(self, data: bytes) -> None:
        if self.closed:  # an error has removed it, and a library still writes its end
            return
        with writing(self.path):
            self._file.write(data)
        self._hash.update(data)
        self._size += len(data)

    def flush(self) -> None:
        """Nothing that anybody waits for: it is whole at the end alone."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._discard()
            return
        try:
            with writing(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._temporary.replace(self.path)
                sync_folder(self.path.parent)
        except UserError:
            self._discard()
            raise

    @property
    def closed(self) -> bool:
        """Whether it is complete, or an error has removed it."""
        return self._file.closed

    @property
    def stamp(self) -> FileStamp:
        """Size and hash of what was written so far."""
        return FileStamp(self._size, self._hash.hexdigest())

    def _discard(self) -> None:
        # close() flushes what is buffered, which fails again on a full disk
        with suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> FileStamp:
    """Write `value` as indented JSON, whole or not at all."""
    with NewFile(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
    return file.stamp


def write_text(path: Path, text: str) -> FileStamp:
    """Write `text` in UTF-8, whole or not at all."""
    with NewFile(path) as file:
        file.write(text.encode())
    return file.stamp


def write_figure(path: Path, figure: Any, dpi: int) -> None:
    """Write a figure of matplotlib's, a picture of the kind that the path ends in, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=dpi)
    with NewFile(path) as file:
        file.write(picture.getvalue())


def check_new_file(flag: str, path: Path) -> None:
    """Check that a file can be written without another being lost."""
    if path.exists() or path.is_symlink():
        raise UserError(f"{flag} {path}: is there already: remove it, or name another file")
    if not path.resolve().parent.is_dir():
        raise UserError(f"{flag} {path}: the folder {path.resolve().parent} does not exist")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_stamps(files: Mapping[Path, FileStamp]) -> None:
    """Compare prepared files' checksums."""
    for path, stamp in files.items():
        if not path.is_file() or sha256_of(path) != stamp.sha256:
            raise UserError(f"{path}: is missing or was modified after it was written (sha256): prepare the data again")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within the block, an error of the system is one of writing this file, which it often does not name itself.

    Raises:
        UserError: names the file, and what to do where the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UserError(
                f"{path}: no space left on the device. Free some space or choose another folder, and "
                "start the same command again: it continues from what is finished."
            ) from error
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


InUse = Literal["refuse", "share", "wait"]
"""What a process does about others: it has the lock alone or not at all, with those that share it, or after them."""


@contextmanager
def hold(lock: Path, in_use: InUse, refusal: str = "") -> Iterator[None]:
    """Hold a file's lock, until the process ends however it ends. It is flock's own: filelock has none that several
    processes share.

    Args:
        refusal: what is said where another process has it.

    Raises:
        UserError: another process has it, or the file cannot be written or locked.
    """
    kind = fcntl.LOCK_SH if in_use == "share" else fcntl.LOCK_EX
    with ExitStack() as stack:
        with writing(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("a+"))  # readable too, which network file systems ask of a shared lock
            try:
                fcntl.flock(file, kind | (0 if in_use == "wait" else fcntl.LOCK_NB))
            except BlockingIOError:
                raise UserError(f"{refusal}: wait for it, or stop it") from None
        if not os.fstat(file.fileno()).st_nlink:  # the one that had it has ended just now, and removed the folder
            raise UserError(f"{refusal}: wait for it, or stop it")
        yield
