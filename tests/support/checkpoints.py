"""Checkpoint files without a run."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.training.checkpoint import FORMAT, write_checkpoint


def write_named(path: Path, content: Mapping[str, Any] = {}) -> None:
    """A checkpoint that says what its name says."""
    match = re.fullmatch(r"cp-(\d+)(?:-step-(\d+))?", path.stem)
    assert match, path
    facts = {"format": FORMAT, "epoch": int(match[1]), "step": int(match[2] or match[1])}
    write_checkpoint({**facts, "model": {}, **content}, path)


def seal(path: Path, data: bytes) -> None:
    """Write a file's content with the checksum that belongs to it, as somebody who crafts a checkpoint would."""
    path.write_bytes(data + f"\nsha256 {hashlib.sha256(data).hexdigest()}\n".encode())
