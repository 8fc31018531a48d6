"""What lies in a folder: one entry for each path below it, to be compared with another time's."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from nystromformer.files.checked_json import read_checked, write_checked

Tree = dict[str, str]
"""Paths below a folder, and of each a word for what it is: `file:SHA-256`, `folder`, `link:target`, `fifo`."""


def listing(folder: Path) -> Tree:
    """Everything below a folder; links are not followed, pipes not opened."""
    return {str(path.relative_to(folder)): _kind(path) for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda each: each.name):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link:{path.readlink()}"
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISREG(mode):
        return f"file:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    return "fifo"


def copy(source: Path, target: Path) -> None:
    """Copy a folder with its files' times; no file is shared.

    What a run of preprocessing keeps of where its corpus lies is moved along.
    """
    shutil.copytree(source, target, symlinks=True)
    for path in target.glob("**/stages/run.json"):
        move_along(path, source, target)


def move_along(path: Path, source: Path, target: Path) -> None:
    """Name another folder in a file with a checksum, with the file's time kept."""
    stat = path.stat()
    write_checked(path, json.loads(json.dumps(read_checked(path)).replace(f"{source}/", f"{target}/")))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def remove(path: Path) -> None:
    """Remove a file, link, pipe or folder, whatever its permissions."""
    if path.is_dir() and not path.is_symlink():
        for folder, names, _ in os.walk(path):
            os.chmod(folder, 0o700)
            for name in names:
                if not (Path(folder) / name).is_symlink():
                    os.chmod(Path(folder) / name, 0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
