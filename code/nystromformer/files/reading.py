"""Reading what others wrote: bounded in size, and with a sentence about whatever it is not."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nystromformer.errors import UserError, reading

JSON_BYTES = 1 << 26
"""The largest JSON file that describes something: manifests and vocabularies have a hundredth of it."""


def size_text(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / (1 << 20):,.0f} MiB" if size >= 10 << 20 else f"{size:,} bytes"


def check_readable(path: Path, limit: int, what: str, advice: str = "") -> None:
    """Check, without reading, that a path is a regular file of at most `limit` bytes.

    Raises:
        UserError: it is a folder, FIFO or device, or larger; names the size and the limit.
        OSError: it is not there, or may not be looked at.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(_sentence(f"{path}: expected a file, found {_kind_of(path)}", advice))
    if status.st_size > limit:
        raise UserError(_sentence(too_large(path, what, status.st_size, limit), advice))


def is_there(path: Path) -> bool:
    """Whether a file is there that need not be.

    Raises:
        UserError: something else bears its name: a folder, or a link that leads nowhere.
    """
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"{path}: expected a file, found {_kind_of(path)}: remove it, or put the file there")
    return path.is_file()


def _kind_of(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "a FIFO, socket or device" if path.exists() else "a link that leads nowhere"


def too_large(place: object, what: str, size: int, limit: int) -> str:
    """What is said of something that is refused by its size."""
    return f"{place}: expected {what} of at most {size_text(limit)}, found {size_text(size)}"


def read_bytes(path: Path, limit: int, what: str, advice: str = "") -> bytes:
    """The content of a file of at most `limit` bytes; a larger one is refused before it is read.

    Raises:
        UserError, OSError: as `check_readable`.
    """
    check_readable(path, limit, what, advice)
    with reading(path), path.open("rb") as file:
        # it may have grown since
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UserError(_sentence(too_large(path, what, len(content), limit), advice))
    return content


def read_text(path: Path, limit: int, what: str) -> str:
    """The same of UTF-8 text.

    Raises:
        UserError: as `check_readable`; or it is no such text, says where.
        OSError: it is not there, or may not be looked at.
    """
    try:
        return read_bytes(path, limit, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected {what} in UTF-8, found another byte at {error.start:,}") from None


def read_lines(file: BinaryIO, place: object, limit: int) -> Iterator[bytes]:
    """A file's lines with their ends; one of more than `limit` bytes is refused before it is read whole.

    Raises:
        UserError: names the line.
    """
    number = 0
    while line := _next_line(file, place, limit + 1):
        number += 1
        if len(line) > limit:
            raise UserError(f"{place}, line {number}: expected lines of at most {size_text(limit)}, found a longer one")
        yield line


def _next_line(file: BinaryIO, place: object, limit: int) -> bytes:
    with reading(place):
        return file.readline(limit)


def read_json(path: Path, advice: str = "") -> Any:
    """The value in a JSON file.

    Raises:
        UserError: it is not UTF-8, no JSON, nested too deep, or larger than JSON_BYTES; ends in `advice`.
        OSError: it cannot be read.
    """
    content = read_bytes(path, JSON_BYTES, "JSON", advice)
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(_sentence(f"{path}: expected JSON, found {json_problem(error)}", advice)) from None


def json_problem(error: ValueError | RecursionError) -> str:
    """What was found in the place of JSON, from what decoding it raised."""
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"the byte 0x{error.object[error.start]:02x} at offset {error.start}, which is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"something else at line {error.lineno}, column {error.colno}: {error.msg}"
    # the decoder's one other error: Python refuses to convert such integers
    return f"an integer of more than {sys.get_int_max_str_digits():,} digits"


def _sentence(problem: str, advice: str) -> str:
    return f"{problem}. {advice}" if advice else problem


def half_character(text: str) -> int | None:
    """Where a text has a lone surrogate, which no tokenizer and no file takes; None where it has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
