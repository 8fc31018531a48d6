"""JSON files that this project wrote, read again: nothing that they say counts before all of it is checked."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from nystromformer.config.messages import dotted, in_words
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json

T = TypeVar("T")

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""For a dataclass' `__pydantic_config__`: every key is known, and every value as it was written."""
_SHA256 = "sha256"
"""The last key of such a file: of all others, whatever their order and the space between them."""


def write_checked(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON with a checksum, whole or not at all."""
    # A file's name may hold bytes that are no text, which no JSON can.
    plain = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    write_json(path, {**plain, _SHA256: _checksum(plain)})


def read_checked(path: Path) -> Any:
    """The JSON of a file, without its checksum; None where there is no file.

    Raises:
        ValueError: it is not JSON, or is not as it was written.
    """
    if not path.exists():
        return None
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict) or data.pop(_SHA256, None) != _checksum(data):
        raise ValueError(f"modified after it was written, or made by an earlier version: its {_SHA256} does not match")
    return data


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def checked(kind: type[T], data: object) -> T:
    """Parsed JSON as a value of a type whose dataclasses are `STRICT`."""
    try:
        # As text, in which a list may stand for a tuple, and an object for a dataclass.
        return TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = f"{dotted(first['loc'])}: " if first["loc"] else ""
        raise ValueError(f"{where}{in_words(first)}") from None


def read_record(path: Path, kind: type[T], advice: str, version: int | None = None) -> T | None:
    """What `write_checked` wrote of a value; None where there is no file.

    Args:
        version: its `format_version`; None: it has none.

    Raises:
        UserError: the file is damaged or of another version; ends in `advice`.
    """
    try:
        data = read_checked(path)
        if data is None:
            return None
        if (found := data.get("format_version")) != version:
            raise ValueError(f"made by an earlier version: its format is {found}, this one reads {version}")
        return checked(kind, data)
    except ValueError as error:
        raise UserError(f"{path}: {error}. {advice}") from None
