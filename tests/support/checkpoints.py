"""Checkpoint files without a run."""

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.run_record import RunRecord

RUN = RunRecord("this run")


def write_named(path: Path, content: Mapping[str, Any] = {}, run_id: str = RUN.run_id) -> None:
    """A checkpoint that says what its name says."""
    match = re.fullmatch(r"cp-(\d+)(?:-step-(\d+))?", path.stem)
    assert match, path
    facts = {"format": FORMAT, "run_id": run_id, "epoch": int(match[1]), "step": int(match[2] or match[1])}
    write_checkpoint({**facts, "model": {}, **content}, path)


def seal(path: Path, data: bytes) -> None:
    """Write a file's content with the checksum that belongs to it, as somebody who crafts a checkpoint would."""
    path.write_bytes(data + f"\nsha256 {hashlib.sha256(data).hexdigest()}\n".encode())


def put_in_the_place_of(path: Path, kind: str) -> None:
    """Something that bears a checkpoint's name and is none."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "empty zip":
        zipfile.ZipFile(path, "w").close()
    else:
        path.touch()


def raising(error: Exception) -> Any:
    """A function that does nothing but fail."""

    def fail(*args: Any, **options: Any) -> None:
        raise error

    return fail
