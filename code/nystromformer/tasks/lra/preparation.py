"""A folder of prepared data, whole or not there: no file has its name before all of them are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.runs.store import MARK, Store
from nystromformer.tasks.lra.made import NoMoreExamples
from nystromformer.tasks.lra.stored import (
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    read_manifest,
    split_files,
    write_manifest,
)

PARTS = "parts"
"""Folder of the finished parts, within that of the data; removed when the data are complete."""
PICTURE = "samples.png"


def check_free(folder: Path, task: str) -> None:
    """Check that nothing would be written over, unless an earlier start of a command has begun there.

    Raises:
        UserError: the folder holds prepared data, or files with the names of such data.
    """
    if not (folder / PARTS / MARK).is_file():
        _check_names(folder, task)


def _check_names(folder: Path, task: str) -> None:
    manifest = read_manifest(folder)
    if manifest is not None:
        raise UserError(f"{folder}: holds prepared data of {manifest.task} already: choose another --out, or remove it")
    files = [path for split in SPLITS for path in split_files(folder, split)]
    for path in [*files, *[folder / PICTURE] * (task == "pathfinder")]:
        if os.path.lexists(path):
            raise UserError(
                f"{path}: is there already, and no {MANIFEST_FILE} beside it says of what: move it away, or choose "
                "another --out"
            )


def prepare(folder: Path, task: str, facts: Mapping[str, Any], make: Callable[[Store], Manifest]) -> Manifest:
    """Prepare a task's data in a folder, or resume it; one command at a time.

    Args:
        facts: all that decides what the data are.
        make: writes all splits into the store's folder of whole files.

    Raises:
        UserError: as `check_free`, as the store, and as `make`. Finished parts stay, but of examples that there are
            not.
    """
    check_free(folder, task)
    is_new = not folder.exists()
    try:
        with Store(folder / PARTS, f"experiments/lra/prepare.py {task}", facts, "choose another --out") as store:
            try:
                if not store.publish_again(folder):
                    _check_names(folder, task)
                    write_manifest(store.whole, make(store))
                    files = [path.name for split in SPLITS for path in split_files(folder, split)]
                    store.publish(folder, [*files, MANIFEST_FILE])
            except UserError as error:
                if isinstance(error, NoMoreExamples) or not store.has_pieces:
                    store.remove()
                raise
            store.remove()
    except UserError:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise
    manifest = read_manifest(folder)
    assert manifest is not None, "it is written last"
    return manifest
