"""Whether a dataset's rows are those that were written: read once for each content, and remembered.

`verified.json` beside the dataset, or in another folder where that cannot be written, has the dataset's fingerprint,
and the size, times and inode of each file that was verified. A file of which one of these differs is read again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nystromformer.data.dataset import Dataset, Rows
from nystromformer.data.index import files_of
from nystromformer.data.manifest import SPLITS, check_sha256
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json

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
    memories = [place / MEMORY_FILE for place in (dataset.folder, other) if place is not None]
    known = [entry for memory in memories for entry in _read_memory(memory)]
    for split in splits:
        for name, stamp in dataset.manifest.split(split).files.items():
            path = dataset.folder / name
            status = path.stat()
            entry = [dataset.fingerprint, name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            if everything or entry not in known:
                log.info("%s: verifying %s bytes of rows", path, f"{stamp.size:,}")
                check_sha256(path, stamp.sha256)
                _remember(entry, memories)
        rows: Rows = getattr(dataset, split)
        if everything and rows.index is not None:
            for name, stamp in files_of(rows.index, split):
                check_sha256(dataset.folder / name, stamp.sha256)


def _remember(entry: list[Any], memories: Sequence[Path]) -> None:
    """Of two processes that write at once, one's entry may be lost, which is then verified again."""
    for path in memories:
        try:
            write_json(path, [*(old for old in _read_memory(path) if old != entry), entry][-_MOST_REMEMBERED:])
            return
        except UserError:
            continue


def _read_memory(path: Path) -> list[Any]:
    """What a file says was verified; nothing where it is missing or damaged, as that costs only time."""
    try:
        return list(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return []
