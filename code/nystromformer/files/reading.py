"""Reading what others wrote, with a sentence about whatever it is not."""

import json
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError


def read_text(path: Path, what: str) -> str:
    """The content of a file of UTF-8.

    Raises:
        UserError: it is no such text; says where.
        OSError: it is not there, or cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected {what} in UTF-8, found another byte at {error.start:,}") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        UserError: it is not UTF-8 or no JSON.
        OSError: it cannot be read.
    """
    try:
        return json.loads(read_text(path, "JSON"))
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, found something else: {error}") from None


def half_character(text: str) -> int | None:
    """Where a text has a lone surrogate, which no tokenizer and no file takes; None where it has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
