"""A checkpoint's file: what `torch.save` writes, and behind it the SHA-256 of all that, which every load verifies.

It is written under a temporary name, synced and renamed: whatever bears its name was whole once. Of what cannot be
read, only what is proved damaged is called so; a disk that does not answer, or a lack of memory, proves nothing.
"""

import errno
import hashlib
import os
import pickle
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from nystromformer.errors import UserError, first_line, reading
from nystromformer.files.writing import DISK_FULL, sync_folder

FORMAT = 2
_TRAILER = re.compile(rb"\nsha256 ([0-9a-f]{64})\n")
_TRAILER_BYTES = 73
_ZIP_END, _ZIP_END_BYTES = b"PK\5\6", 22
"""What a file that torch.save alone wrote ends with."""
_PICKLE = b"\x80"
"""The first byte of a bare pickle."""
_CHUNK_BYTES = 1 << 20
_OF_THE_SYSTEM = {errno.EACCES, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENODEV, errno.ENOMEM, errno.ESTALE}
TEMPORARY = ".tmp"
STATE = ("model", "optimizer", "scaler", "progress")
"""What of a checkpoint's content is the run's state; the rest are facts about it, plain data."""


class UnreadableCheckpoint(UserError):
    """A checkpoint file that is proved damaged: an earlier one may serve."""


class _Hashing:
    """A file to write to, hashed on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def write_trailer(self) -> None:
        self._file.write(f"\nsha256 {self._hash.hexdigest()}\n".encode())


def write_checkpoint(content: Mapping[str, Any], path: Path) -> None:
    """Write atomically; what stood at `path` before stays whole until the new file is.

    Raises:
        UserError: the file cannot be written (a full disk, a missing permission); nothing is left behind.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            hashing = _Hashing(file)
            torch.save(dict(content), hashing)  # type: ignore[arg-type]  # it has what is needed
            hashing.write_trailer()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = "no space left on the device" if _is_full(error) else first_line(error)
        raise UserError(
            f"{path}: the checkpoint could not be written: {reason}. The checkpoints before it are whole: make room "
            "and start the same command again to resume from the last one."
        ) from error


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a `.cp` or `.model` file; only tensors and plain data are ever loaded.

    Args:
        mmap: leave the tensors in the file, which is read for damage all the same.

    Raises:
        UnreadableCheckpoint: truncated, damaged, or no file at all.
        UserError: missing, not of this project, of a newer format, a pickle with code in it (refused); or the machine
            could not read it, which proves nothing of the file.
    """
    _check_is_file(path)
    with _machine_faults(path):
        _check_sum(path)
        return _load(path, mmap, is_proved=True)


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint says beside its tensors, which are not read.

    Raises:
        UnreadableCheckpoint: what is read is damaged.
        UserError: as of `read_checkpoint`.
    """
    _check_is_file(path)
    with _machine_faults(path):
        _trailer(path)
        _check_archive(path)
        content = _load(path, mmap=True, is_proved=False)
    return {key: value for key, value in content.items() if key not in STATE}


def looks_whole(path: Path) -> bool:
    """Whether a file ends as a checkpoint does, which one that was cut short does not; nothing else of it is read."""
    try:
        _check_is_file(path)
        with _machine_faults(path):
            _trailer(path)
            return True
    except UnreadableCheckpoint:
        return False


def _trailer(path: Path) -> str:
    """The checksum that a file ends with.

    Raises:
        UnreadableCheckpoint: it ends with none, as one that was cut short.
        UserError: it ends with none, and is a whole file that something else wrote.
    """
    with reading(path), path.open("rb") as file:
        begin = file.read(1)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _TRAILER_BYTES))
        end = file.read(_TRAILER_BYTES)
    if match := _TRAILER.fullmatch(end):
        return match[1].decode()
    is_zip = size > _ZIP_END_BYTES and end[-_ZIP_END_BYTES:].startswith(_ZIP_END)
    if begin == _PICKLE or is_zip:
        raise UserError(
            f"{path}: refused: not a checkpoint of this project, whose files end with their checksum; loading another "
            "one could run code"
        )
    raise UnreadableCheckpoint(f"{path}: truncated or damaged (no checksum at its end)")


def _check_sum(path: Path) -> None:
    """Check that a file's checksum is that of what is before it.

    Raises:
        UnreadableCheckpoint: it is not, or there is none.
    """
    expected = _trailer(path)
    digest = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - _TRAILER_BYTES
        while left > 0 and (chunk := file.read(min(_CHUNK_BYTES, left))):
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest() != expected:
        raise UnreadableCheckpoint(f"{path}: damaged (its content is not what its checksum says)")


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        if path.is_symlink():
            raise UnreadableCheckpoint(f"{path}: a link to {os.readlink(path)}, which is not there") from error
        raise UserError(f"{path}: no such checkpoint") from error
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise UnreadableCheckpoint(f"{path}: a link to {os.readlink(path)}, which leads in a circle") from error
        raise _cannot_be_read(path, error) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no file"
        raise UnreadableCheckpoint(f"{path}: {kind}, where a checkpoint should be")


@contextmanager
def _machine_faults(path: Path) -> Iterator[None]:
    """What says nothing of the file itself ends the command with its name."""
    try:
        yield
    except MemoryError as error:
        raise _no_memory(path) from error
    except OSError as error:
        raise _cannot_be_read(path, error) from error


def _cannot_be_read(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: cannot be read: {error.strerror or error}. Nothing was changed; once this is fixed, the same "
        "command resumes from it."
    )


def _no_memory(path: Path) -> UserError:
    return UserError(
        f"{path}: not enough memory to read it. Nothing was changed; with more memory the same command resumes from it."
    )


def _load(path: Path, mmap: bool, is_proved: bool) -> dict[str, Any]:
    """What the file holds.

    Args:
        is_proved: the file is as it was written, so that nothing that happens now proves it damaged.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. Only "
            f"checkpoints that this project writes are loaded. ({first_line(error)})"
        ) from error
    except (MemoryError, OSError):
        raise
    except Exception as error:
        if "allocate memory" in str(error):
            raise _no_memory(path) from error
        if cause := _machine_error(error) or _told_by_torch(error):
            raise cause from error
        if is_proved:
            raise UserError(f"{path}: refused: not written by this project ({first_line(error)})") from error
        raise UnreadableCheckpoint(f"{path}: damaged: {first_line(error)}") from error
    if not isinstance(content, dict) or "format" not in content or "model" not in content:
        raise UserError(f'{path}: not a checkpoint of this project: expected a dict with "format" and "model"')
    if type(content["format"]) is not int or content["format"] != FORMAT:
        raise UserError(f"{path}: checkpoint format {content['format']!r:.40}, this version reads format {FORMAT}")
    run_id = content.get("run_id")
    if not isinstance(run_id, str) or not run_id:
        raise UserError(f"{path}: not a checkpoint of this project: its run's id is not a text")
    return content


def _told_by_torch(error: BaseException) -> OSError | None:
    """The error of the system in the words of torch's memory maps: `…: Too many open files (24)`."""
    match = re.search(r"\((\d+)\)$", first_line(error))
    if match is None or int(match[1]) not in _OF_THE_SYSTEM:
        return None
    return OSError(int(match[1]), os.strerror(int(match[1])))


def _check_archive(path: Path) -> None:
    """Check what is not a tensor's bytes, a small part of the file; torch.load does not name a damaged member."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".pkl")]
            for name in names:
                archive.read(name)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which a damaged offset gives
            raise
        raise UnreadableCheckpoint(f"{path}: truncated or damaged ({error})") from error
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError) as error:
        raise UnreadableCheckpoint(f"{path}: truncated or damaged ({error})") from error
    if not any(name.endswith("/data.pkl") for name in names):
        raise UnreadableCheckpoint(f"{path}: damaged at its directory, which names no data.pkl")


def _machine_error(error: BaseException) -> OSError | None:
    """The error of the machine that torch's own was raised for."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _is_full(error: BaseException) -> bool:
    cause = _machine_error(error)
    return cause is not None and cause.errno in DISK_FULL
