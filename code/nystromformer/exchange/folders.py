"""Folders that appear under their name only when they are whole, and take nobody else's place."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nystromformer.errors import UserError
from nystromformer.files.writing import sync_folder, writing

T = TypeVar("T")


def check_free(folder: Path, force: bool, source: Path) -> None:
    """Check that a folder is not there, is empty, or may be replaced.

    Args:
        source: what is read, which is never replaced.

    Raises:
        UserError: it has files, is none, or holds the source.
    """
    if source.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{folder}: holds {source}, the input of this command: choose another folder")
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"{folder}: expected a folder, or nothing, found a file")
    with writing(folder):
        is_used = folder.is_dir() and any(folder.iterdir())
    if is_used and not force:
        raise UserError(f"{folder}: not empty: choose another folder, or give --force to replace all that is in it")


def write_folder(folder: Path, write: Callable[[Path], T], force: bool, source: Path) -> T:
    """Let `write` fill a new folder, which takes the place of `folder` when it is done; on failure nothing is left.

    Raises:
        UserError: as of `check_free` and `write`, or it cannot be written.
    """
    check_free(folder, force, source)
    # Through a link to a folder the folder itself is replaced.
    folder = folder.resolve()
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(suffix=".tmp", prefix=f".{folder.name}.", dir=folder.parent))
    new, old = work / "new", work / "old"
    try:
        with writing(folder):
            new.mkdir()
        result = write(new)
        with writing(folder):
            if force and folder.is_dir():
                folder.rename(old)
            new.rename(folder)  # fails where somebody put something there meanwhile
            sync_folder(folder.parent)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(work, ignore_errors=True)
    return result
