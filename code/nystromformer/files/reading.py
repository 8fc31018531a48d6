"""Reading what others wrote: bounded in size, and with a sentence about whatever it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nystromformer.errors import UserError, reading

JSON_BYTES = 1 << 26
"""The largest JSON file that describes something: manifests and vocabularies have a hundredth of it."""


def size_text(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / (1 << 20):,.0f} MiB" if size >= 10 << 20 else f"{size:,} bytes"


def too_large(place: object, what: str, size: int, limit: int) -> str:
    """What is said of something that is refused by its size."""
    return f"{place}: expected {what} of at most {size_text(limit)}, found {size_text(size)}"


def read_bytes(path: Path, limit: int, what: str, advice: str = "") -> bytes:
    """The content of a file of at most `limit` bytes; a larger one is refused before it is read.

    Raises:
        UserError: it is larger; names the size and the limit, and ends in `advice`.
        OSError: it is not there, or cannot be read.
    """
    if (size := path.stat().st_size) > limit:
        raise UserError(_sentence(too_large(path, what, size, limit), advice))
    return path.read_bytes()


def read_text(path: Path, limit: int, what: str) -> str:
    """The same of UTF-8 text.

    Raises:
        UserError, OSError: as `read_bytes`; or it is no such text, says where.
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
    with reading(place):
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise UserError(
                    f"{place}, line {number}: expected lines of at most {size_text(limit)}, found a longer one"
                )
            yield line


def read_json(path: Path, advice: str = "") -> Any:
    """The value in a JSON file.

    Raises:
        UserError: it is not UTF-8, no JSON, or larger than JSON_BYTES; ends in `advice`.
        OSError: it cannot be read.
    """
    try:
        return json.loads(read_bytes(path, JSON_BYTES, "JSON", advice).decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(_sentence(f"{path}: expected JSON, found {json_problem(error)}", advice)) from None


def json_problem(error: ValueError | RecursionError) -> str:
    """What was found in the place of JSON, from what decoding it raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"something else at line {error.lineno}, column {error.colno}: {error.msg}"
    return f"something else: {error}"


def _sentence(problem: str, advice: str) -> str:
    return f"{problem}. {advice}" if advice else problem


def half_character(text: str) -> int | None:
    """Where a text has a lone surrogate, which no tokenizer and no file takes; None where it has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
