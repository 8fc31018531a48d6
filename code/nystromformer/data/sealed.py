"""JSON files that say of themselves what they held when they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import FileStamp, write_json

SEAL = "seal"


def write_sealed(path: Path, record: Mapping[str, Any]) -> FileStamp:
    """Write a JSON object and, as its last key, the SHA-256 of the others and their values."""
    return write_json(path, {**record, SEAL: _seal_of(record)})


def unsealed(path: Path, record: Mapping[str, Any], advice: str) -> dict[str, Any]:
    """An object that was read, without its seal.

    Raises:
        UserError: a value was changed since it was written; ends in `advice`.
    """
    content = {key: value for key, value in record.items() if key != SEAL}
    if record.get(SEAL) != _seal_of(content):
        raise UserError(f"{path}: was changed since it was written: its values do not give the seal in it. {advice}")
    return content


def _seal_of(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
