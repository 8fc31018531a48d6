"""Folders that appear under their name only when they are whole, and take nobody else's place."""

import errno
import os
import secrets
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
    """Let `write` fill a new folder, which takes the place of `folder` when it is done; on failure nothing is left.

    Raises:
        UserError: as of `check_free` and `write`, it cannot be written, or something appeared in its place meanwhile.
    """
    check_free(folder, force, source)
    # Through a link to a folder the folder itself is replaced.
    folder = folder.resolve()
    # All that is temporary lies in one folder of a name that nobody else has.
    work = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work.mkdir()
    try:
        new = work / "new"
        with writing(folder):
            new.mkdir()
        write(new)
        with writing(folder):
            _put_in_place(new, folder, work / "old" if force else None)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(new: Path, folder: Path, old: Path | None) -> None:
    """Rename a folder to its name; what has the name goes to `old`, or None: it may be an empty folder alone."""
    if old is not None and folder.is_dir():
        folder.rename(old)
    try:
        new.rename(folder)  # fails where there is a file, or a folder with files
    except OSError as error:
        kept = ""
        if old is not None and old.is_dir():
            try:
                old.rename(folder)
            except OSError:
                aside = folder.with_name(f"{folder.name}.{old.parent.suffixes[-2].removeprefix('.')}")
                old.rename(aside)
                kept = f"; what it had before is in {aside.name}"
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UserError(
            f"{folder}: appeared, or was filled, while this command wrote; it stays as it is, and nothing was "
            f"written{kept}. Start the command again with another folder, or once the other one is done"
        ) from error
    sync_folder(folder.parent)
