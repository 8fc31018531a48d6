"""Folders that appear under their name only when they are whole, and take nobody else's place."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nystromformer.errors import UserError
from nystromformer.files.writing import sync_folder, writing

T = TypeVar("T")


def check_free(folder: Path) -> None:
    """Check that a folder is not there, or is empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an empty folder: choose another name, or remove it")


def write_folder(folder: Path, write: Callable[[Path], T]) -> T:
    """Let `write` fill a new folder, which appears under its name when it is done; on failure nothing is left."""
    check_free(folder)
    folder = folder.resolve()
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(suffix=".tmp", prefix=f".{folder.name}.", dir=folder.parent))
    try:
        new = work / "new"
        new.mkdir()
        result = write(new)
        with writing(folder):
            new.rename(folder)  # fails where somebody put something there meanwhile
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return result
