"""A checkpoint's file: what `torch.save` writes, and behind it the SHA-256 of all that, which every load verifies.

It is written under a temporary name, synced and renamed: whatever bears its name was whole once.
"""

import hashlib
import os
import pickle
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from nystromformer.errors import UserError, first_line, reading
from nystromformer.files.writing import DISK_FULL, sync_folder

FORMAT = 3
_TRAILER = re.compile(rb"\nsha256 ([0-9a-f]{64})\n")
_TRAILER_BYTES = 73
_CHUNK_BYTES = 1 << 20
TEMPORARY = ".tmp"
STATE = ("model", "optimizer", "scaler", "progress")
"""What of a checkpoint's content is the run's state; the rest are facts about it, plain data."""


class UnreadableCheckpoint(UserError):
    """A checkpoint file that is truncated or damaged: an earlier one may serve."""


class _Hashing:
    """A file to write to, hashed on the way; remembers an error of the system, which torch.save does not pass on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

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
    hashing: _Hashing | None = None
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
        cause = (hashing and hashing.failure) or error
        is_full = isinstance(cause, OSError) and cause.errno in DISK_FULL
        raise UserError(
            f"{path}: the checkpoint could not be written: "
            f"{'no space left on the device' if is_full else first_line(cause)}. The checkpoints before it are whole: "
            "make room and start the same command again to resume from the last one."
        ) from error


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a `.cp` or `.model` file; only tensors and plain data are ever loaded.

    Args:
        mmap: leave the tensors in the file, which is read for damage all the same.

    Raises:
        UnreadableCheckpoint: truncated or damaged.
        UserError: missing, not of this project, of another format, or with code in it (refused).
    """
    _check_sum(path)
    return _load(path, mmap)


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint says beside its tensors, which are neither read nor verified.

    Raises:
        UserError: what is read is damaged, or as of `read_checkpoint`.
    """
    return {key: value for key, value in _load(path, mmap=True).items() if key not in STATE}


def stated_checksum(path: Path) -> str:
    """The SHA-256 at the end of a checkpoint, which reading it has verified."""
    with path.open("rb") as file:
        file.seek(-_TRAILER_BYTES, os.SEEK_END)
        return file.read().split()[1].decode()


def _check_sum(path: Path) -> None:
    """Check that a file ends with the checksum of what is before it.

    Raises:
        UnreadableCheckpoint: it does not.
        UserError: it is not there.
    """
    digest = hashlib.sha256()
    try:
        with reading(path), path.open("rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - _TRAILER_BYTES)
            while left > 0 and (chunk := file.read(min(_CHUNK_BYTES, left))):
                digest.update(chunk)
                left -= len(chunk)
            found = _TRAILER.fullmatch(file.read())
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint") from error
    if found is None:
        raise UnreadableCheckpoint(
            f"{path}: truncated or damaged (no checksum at its end), or not a checkpoint of this project"
        )
    if digest.hexdigest() != found[1].decode():
        raise UnreadableCheckpoint(f"{path}: damaged (its content is not what its checksum says)")


def _load(path: Path, mmap: bool) -> dict[str, Any]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. Only "
            f"checkpoints that this project writes are loaded. ({first_line(error)})"
        ) from error
    except Exception as error:  # torch raises of many kinds
        raise UserError(f"{path}: cannot be loaded: {first_line(error)}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or found != FORMAT or "model" not in content:
        raise UserError(
            f"{path}: expected a checkpoint of format {FORMAT}, found {found!r:.40}: made by an earlier version, or no "
            "checkpoint of this project"
        )
    return content
