"""Whether a dataset's rows are those that were written: read once for each content, and remembered.

`verified.json` beside the dataset, or in another folder where that cannot be written, has the size, times and inode of
each file that was verified, and the dataset's fingerprint. A file of which one of these differs is read again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nystromformer.data.dataset import Dataset
from nystromformer.data.manifest import MAKE_ANEW, SPLITS
from nystromformer.errors import UserError
from nystromformer.files.reading import size_text
from nystromformer.files.writing import sha256_of, write_json

log = logging.getLogger(__name__)

MEMORY_FILE = "verified.json"
_MOST_REMEMBERED = 256


def verify(
    dataset: Dataset, splits: Sequence[str] = SPLITS, other: Path | None = None, everything: bool = False
) -> None:
    """Compare the SHA-256 of the files of a dataset's splits with its manifest, unless that was done before. Rows in
    parts are compared with their index on demand alone: there may be many terabytes of them.

    Args:
        other: folder to remember in where the dataset's own cannot be written.
        everything: read all files, those that were verified and parts included.

    Raises:
        UserError: a file is not what the manifest says.
    """
    folder, rows = dataset.folder, {"train": dataset.train, "validation": dataset.validation}
    stamps = {name: stamp for split in splits for name, stamp in dataset.manifest.split(split).files.items()}
    memories = [place / MEMORY_FILE for place in (folder, other) if place is not None]
    known = [entry for memory in memories for entry in _read_memory(memory)]
    entries = {name: _entry(folder / name, dataset.fingerprint) for name in stamps}
    to_do = [name for name in stamps if everything or entries[name] not in known]
    if to_do:
        log.info("%s: verifying %s of rows", folder, size_text(sum(stamps[name].size for name in to_do)))
    for name in to_do:
        _verify(folder / name, stamps[name].sha256)
        _remember(entries[name], memories)
    for split in splits if everything else ():
        if (index := rows[split].index) is not None:
            for name, stamp in index.files(split):
                _verify(folder / name, stamp.sha256)


def _entry(path: Path, dataset: str) -> dict[str, Any]:
    status = path.stat()
    return {
        "dataset": dataset,
        "file": path.name,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def _verify(path: Path, expected: str) -> None:
    if (found := sha256_of(path)) != expected:
        raise UserError(
            f"{path}: expected SHA-256 {expected} as in the manifest, found {found}: the file was changed since it was "
            f"made. {MAKE_ANEW}"
        )


def _remember(entry: dict[str, Any], memories: Sequence[Path]) -> None:
    """Of two processes that write at once, one's entry may be lost, which is then verified again."""
    for path in memories:
        others = [old for old in _read_memory(path) if old != entry]
        try:
            write_json(path, [*others, entry][-_MOST_REMEMBERED:])
            return
        except UserError:
            continue


def _read_memory(path: Path) -> list[dict[str, Any]]:
    """What a file says was verified; nothing where it is missing or damaged, as that costs only time."""
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []
