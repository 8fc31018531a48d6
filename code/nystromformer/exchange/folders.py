"""Folders that appear under their name only when they are whole."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.files import sync_folder, writing


def check_free(folder: Path, force: bool, source: Path) -> None:
    """Check that a folder is not there, is empty, or may be replaced.

    Args:
        source: what is read, which is never replaced.

    Raises:
        UserError: it has files, is none, or holds the source.
    """
    if source.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{folder}: holds {source}, which is read: choose another folder")
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"{folder}: expected a folder, or nothing, found a file")
    with writing(folder):
        is_used = folder.is_dir() and any(folder.iterdir())
    if is_used and not force:
        raise UserError(f"{folder}: not empty: choose another folder, or give --force to replace all that is in it")


def write_folder(folder: Path, write: Callable[[Path], object], force: bool, source: Path) -> None:
    """Let `write` fill a folder beside `folder`, which takes its place when it is done; on failure nothing is left.

    Raises:
        UserError: as of `check_free` and `write`, or it cannot be written.
    """
    check_free(folder, force, source)
    # Through a link to a folder the folder itself is replaced.
    folder = folder.resolve()
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        write(temporary)
        with writing(folder):
            _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    replaced = temporary.with_name(f"{temporary.name}.replaced")
    if folder.is_dir():
        folder.rename(replaced)
    try:
        temporary.rename(folder)
    except OSError:
        if replaced.is_dir():
            replaced.rename(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
