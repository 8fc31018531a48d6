"""A task's examples on disk: rows of bytes of any length, memory-mapped, with a manifest.

A split has three files: `<split>.tokens.bin`, all sequences one after another, a byte each token; `<split>.ends.bin`,
where each ends, int64, little-endian; `<split>.labels.bin`, a byte each example.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, read_record
from nystromformer.files.writing import FileStamp, NewFile, check_stamps

MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation", "test")
_DTYPES = {"tokens": "u1", "ends": "<i8", "labels": "u1"}

Example = tuple[Sequence[bytes], int]
"""Its sequences, one or, of a pair, two; and its label."""


@dataclass(frozen=True)
class SplitFacts:
    """What a split holds."""

    examples: int
    cut: int
    """Sequences that were longer and lost their end."""
    files: dict[str, FileStamp]
    """By `tokens`, `ends` and `labels`."""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class TaskData:
    """What the examples of a task are."""

    task: str
    classes: int
    official: dict[str, int]
    """Examples of each split in the Long Range Arena."""
    kinds: int = 256
    """Of token: each is below."""
    sequences: int = 1
    """Of an example: 1, or 2 of a pair."""
    length: int | None = None
    """Bytes that the Long Range Arena keeps of a sequence; None: all."""
    draw: int = 2
    """Of the training examples that are held out: other numbers are other draws."""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Manifest:
    """What a folder holds; written last, so that a folder with a manifest is complete."""

    data: TaskData
    settings: dict[str, Any]
    """All that decides what the examples are."""
    splits: dict[str, SplitFacts]
    warnings: list[str] = field(default_factory=list)
    """Why figures on them do not compare with published ones; every result says so, too."""
    __pydantic_config__ = STRICT


def split_files(folder: Path, split: str) -> dict[str, Path]:
    """The files of a split, by `tokens`, `ends` and `labels`."""
    return {kind: folder / f"{split}.{kind}.bin" for kind in _DTYPES}


def write_split(
    folder: Path, split: str, examples: Iterable[Example], data: TaskData, longest: int | None = None
) -> SplitFacts:
    """Write the files of a split, whole or not at all.

    Args:
        longest: tokens that a sequence keeps; None: all.
    """
    ends, labels, cut, end = array("q"), bytearray(), 0, 0
    with ExitStack() as stack:
        files = {kind: stack.enter_context(NewFile(path)) for kind, path in split_files(folder, split).items()}
        for whole, label in examples:
            assert len(whole) == data.sequences
            assert label < data.classes
            for sequence in whole:
                tokens = sequence[:longest]
                assert max(tokens) < data.kinds
                cut += len(tokens) < len(sequence)
                files["tokens"].write(tokens)
                ends.append(end := end + len(tokens))
            labels.append(label)
        files["ends"].write(np.array(ends, dtype=_DTYPES["ends"]).tobytes())
        files["labels"].write(bytes(labels))
    return SplitFacts(len(labels), cut, {kind: file.stamp for kind, file in files.items()})


class StoredSplit:
    """The examples of one split, mapped into memory at first use."""

    def __init__(self, folder: Path, split: str, facts: SplitFacts, sequences: int = 1) -> None:
        self._files = split_files(folder, split)
        self.facts = facts
        self.sequences = sequences

    def __len__(self) -> int:
        return self.facts.examples

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Of each example."""
        return self._map("labels").astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, (examples, sequences)."""
        return np.diff(self._ends, prepend=0).reshape(-1, self.sequences)

    def tokens(self, example: int, sequence: int = 0) -> NDArray[np.uint8]:
        """One sequence."""
        index = example * self.sequences + sequence
        start = int(self._ends[index - 1]) if index else 0
        found: NDArray[np.uint8] = self._tokens[start : int(self._ends[index])]
        return found

    def stacked(self) -> NDArray[np.uint8]:
        """All sequences, which have one length, (examples, sequences, tokens); a view of the file."""
        return self._tokens.reshape(len(self), self.sequences, -1)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.asarray(self._map("ends"))

    @cached_property
    def _tokens(self) -> NDArray[np.uint8]:
        return self._map("tokens")

    def _map(self, kind: str) -> NDArray[Any]:
        return np.memmap(self._files[kind], dtype=_DTYPES[kind], mode="r")


@dataclass(frozen=True)
class Stored:
    """A prepared task."""

    folder: Path
    manifest: Manifest

    def split(self, name: str) -> StoredSplit:
        """One of SPLITS."""
        return StoredSplit(self.folder, name, self.manifest.splits[name], self.manifest.data.sequences)


def open_stored(folder: Path, task: str) -> Stored:
    """A folder that was prepared for a task; all its files are read once and compared with their checksums."""
    manifest = read_record(folder / MANIFEST_FILE, Manifest, "Prepare the data again.")
    if manifest is None:
        raise UserError(f"{folder}: no prepared data: run `python experiments/lra/prepare.py {task}` first")
    if manifest.data.task != task:
        raise UserError(f"{folder}: expected data of {task}, found that of {manifest.data.task}")
    for split, facts in manifest.splits.items():
        check_stamps({path: facts.files[kind] for kind, path in split_files(folder, split).items()})
    return Stored(folder, manifest)
