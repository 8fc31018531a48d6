"""Where the Long Range Arena's data come from: its release, or the data sets that its tasks are made of."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.tasks.lra.stored import Example

RELEASE = "lra_release"
"""The folder that the release unpacks to, and which it has in it once more."""
_STREAM = 40


def missing_files(folder: Path, names: Mapping[str, str], partial: bool, what: str) -> dict[str, Path]:
    """The files of each split that are in a folder.

    Args:
        names: of the files, by split.
        partial: whether files other than training's may be missing.

    Raises:
        UserError: one is missing that may not be (lists which were looked for), or is no file.
    """
    for name in names.values():
        if os.path.lexists(folder / name) and not (folder / name).is_file():
            raise UserError(f"{folder / name}: expected a file, found something else, such as a link to nothing")
    found = {split: folder / name for split, name in names.items() if (folder / name).is_file()}
    missing = [folder / name for split, name in names.items() if split not in found]
    if missing and (not partial or "train" not in found):
        advice = (
            ""
            if "train" not in found
            else " With --partial splits are cut from what is there, and every result says so."
        )
        raise UserError(
            f"{folder}: expected {what}, found no {', '.join(path.name for path in missing)}; looked for "
            f"{', '.join(names.values())}.{advice}"
        )
    return found


def carve(count: int, shares: Sequence[float], seed: int, *key: int) -> list[NDArray[np.int64]]:
    """Numbers 0 … count-1 divided at random: the first part is what is left, each other one has its share of them.

    Args:
        seed, key: what decides which go where.
    """
    order = permute(np.arange(count), count, seed, _STREAM, *key) if count > 1 else np.arange(count)
    sizes = [max(1, round(share * count)) for share in shares]
    if sum(sizes) >= count:
        raise UserError(f"{count} examples are too few to be divided into training, validation and test")
    parts, begin = [], count
    for size in sizes:
        begin -= size
        parts.append(np.sort(order[begin : begin + size]))
    return [np.sort(order[:begin]), *parts]


class UnchangedSource:
    """Examples that are read more than once, and have to be the same each time."""

    def __init__(self, place: Path | str, read: Callable[[], Iterator[Example]]) -> None:
        self._place, self._read = place, read
        self._digest: str | None = None

    def __call__(self) -> Iterator[Example]:
        """All examples.

        Raises:
            UserError: they are not what they were; known at the end.
        """
        digest = hashlib.sha256()
        for example in self._read():
            for content in (*example[0], str(example[1]).encode()):
                digest.update(b"%d;" % len(content))
                digest.update(content)
            yield example
        if self._digest not in (None, digest.hexdigest()):
            raise UserError(
                f"{self._place}: changed while it was read, so that nothing was written: start the same command again "
                "once nothing changes it any more"
            )
        self._digest = digest.hexdigest()
