"""A task's examples on disk: rows of bytes of any length, memory-mapped, with a manifest.

A split has three files: `<split>.tokens.bin`, all sequences one after another, a byte each token; `<split>.ends.bin`,
where each ends, int64, little-endian; `<split>.labels.bin`, a byte each example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files import FileStamp, NewFile, sha256_of
from nystromformer.kept import STRICT, checked, read_kept, write_kept

VALIDATE_ON_LAST = "validate_on_last"
"""The setting of Image's data whose validation examples are the last of the training examples."""
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "validation", "test")
FORMAT = 1
_FILES = ("tokens", "ends", "labels")
_AHEAD = 1 << 20
"""Bytes that are collected before they are written."""

Example = tuple[Sequence[bytes], int]
"""Its sequences, one or, of a pair, two; and its label."""


@dataclass(frozen=True)
class SplitFacts:
    """What a split holds."""

    examples: int
    tokens: int
    shortest: int
    longest: int
    """Tokens of a sequence."""
    labels: list[int]
    """How many examples each class has."""
    cut: int
    """Sequences that were longer and lost their end."""
    files: dict[str, FileStamp]
    """By `tokens`, `ends` and `labels`."""
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Manifest:
    """What a folder holds; written last, so that a folder with a manifest is complete."""

    task: str
    kinds: int
    """Of token: each is below."""
    classes: int
    sequences: int
    """Of an example: 1, or 2 of a pair."""
    source: str
    """Where the examples come from, in words."""
    settings: dict[str, Any]
    """All that decides what they are."""
    splits: dict[str, SplitFacts]
    warnings: list[str] = field(default_factory=list)
    """Why figures on them do not compare with published ones; every result says so, too."""
    format: int = FORMAT
    __pydantic_config__ = STRICT

    @property
    def fingerprint(self) -> str:
        """Equal for equal examples."""
        parts = [f"{name}={self.splits[name].files[file].sha256}" for name in self.splits for file in _FILES]
        return " ".join(parts)


def split_files(folder: Path, split: str) -> list[Path]:
    """Of a split."""
    return [folder / f"{split}.{name}.bin" for name in _FILES]


class SplitWriter:
    """Writes a split, example by example; a context manager, whose files appear together with its end.

    Args:
        sequences: of each example.
        longest: tokens that a sequence keeps; None: all.
    """

    def __init__(self, folder: Path, split: str, kinds: int, classes: int, sequences: int, longest: int | None) -> None:
        self._files = {name: NewFile(path) for name, path in zip(_FILES, split_files(folder, split), strict=True)}
        self._kinds, self._sequences, self._longest = kinds, sequences, longest
        self._labels = np.zeros(classes, dtype=np.int64)
        self._lengths = [1 << 62, 0]
        self._last = self._cut = 0
        self._ahead = {name: bytearray() for name in _FILES}
        self._stack = ExitStack()

    def __enter__(self) -> SplitWriter:
        for file in self._files.values():
            self._stack.enter_context(file)
        self._stack.push(self._end)  # the first to be called; where it fails, the files are thrown away
        return self

    def add(self, example: Example) -> None:
        """Write one.

        Raises:
            ValueError: another number of sequences, an empty one, or a token or label that there is not.
        """
        sequences, label = example
        if len(sequences) != self._sequences or not 0 <= label < len(self._labels):
            raise ValueError(f"expected {self._sequences} sequences and a label below {len(self._labels)}")
        for sequence in sequences:
            kept = sequence if self._longest is None else sequence[: self._longest]
            self._cut += len(kept) < len(sequence)
            if not kept or max(kept) >= self._kinds:
                raise ValueError(f"expected tokens below {self._kinds}, and at least one")
            self._last += len(kept)
            self._lengths = [min(self._lengths[0], len(kept)), max(self._lengths[1], len(kept))]
            self._ahead["tokens"] += kept
            self._ahead["ends"] += self._last.to_bytes(8, "little")
        self._labels[label] += 1
        self._ahead["labels"].append(label)
        if len(self._ahead["tokens"]) >= _AHEAD:
            self._flush()

    def _flush(self) -> None:
        for name, content in self._ahead.items():
            self._files[name].write(bytes(content))
            content.clear()

    def _end(self, *error: Any) -> None:
        if error[0] is None:
            self._flush()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def facts(self) -> SplitFacts:
        """Of what was written."""
        examples = int(self._labels.sum())
        shortest, longest = self._lengths if examples else (0, 0)
        stamps = {name: file.stamp for name, file in self._files.items()}
        return SplitFacts(examples, self._last, shortest, longest, self._labels.tolist(), self._cut, stamps)


def write_split(
    folder: Path,
    split: str,
    examples: Iterable[Example],
    kinds: int,
    classes: int,
    sequences: int = 1,
    longest: int | None = None,
) -> SplitFacts:
    """Write a whole split; arguments as for SplitWriter."""
    with SplitWriter(folder, split, kinds, classes, sequences, longest) as writer:
        for example in examples:
            writer.add(example)
    return writer.facts


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it, whole or not at all."""
    write_kept(folder / MANIFEST_FILE, asdict(manifest))


def read_manifest(folder: Path) -> Manifest | None:
    """What a folder holds; None where nothing complete is there.

    Raises:
        UserError: the manifest is damaged or of another version.
    """
    path = folder / MANIFEST_FILE
    try:
        data = read_kept(path)
        if data is None:
            return None
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ValueError(f"format: expected {FORMAT}, found {data.get('format')!r:.40}")
        return checked(Manifest, data)
    except ValueError as error:
        raise UserError(
            f"{path}: expected the manifest of prepared data, found something else ({error}). Prepare it again into an "
            "empty folder."
        ) from None


class StoredSplit:
    """The examples of one split, mapped into memory at first use and again in every process."""

    def __init__(self, folder: Path, split: str, manifest: Manifest) -> None:
        self._folder, self._split = folder, split
        self.facts = manifest.splits[split]
        self.sequences = manifest.sequences

    def __len__(self) -> int:
        return self.facts.examples

    @property
    def labels(self) -> NDArray[np.int64]:
        """Of each example."""
        return np.asarray(self._map("labels", "u1")).astype(np.int64)

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

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.asarray(self._map("ends", "<i8"))

    @cached_property
    def _tokens(self) -> NDArray[np.uint8]:
        return self._map("tokens", "u1")

    def _map(self, name: str, kind: str) -> NDArray[Any]:
        path = self._folder / f"{self._split}.{name}.bin"
        size = self.facts.files[name].size
        if not path.is_file() or path.stat().st_size != size:
            raise UserError(f"{path}: expected a file of {size:,} bytes, as the manifest says: prepare the data again")
        if not size:
            return np.empty(0, dtype=kind)
        return np.memmap(path, dtype=kind, mode="r")

    def __getstate__(self) -> Mapping[str, Any]:
        # A pickle holds the paths, not the content.
        return {key: value for key, value in vars(self).items() if key not in ("_ends", "_tokens")}


@dataclass(frozen=True)
class Stored:
    """A prepared task."""

    folder: Path
    manifest: Manifest

    def split(self, name: str) -> StoredSplit:
        """One of SPLITS."""
        return StoredSplit(self.folder, name, self.manifest)

    def verify(self) -> None:
        """Read all files and compare their checksums.

        Raises:
            UserError: names the first that is not as it was written.
        """
        for split, facts in self.manifest.splits.items():
            for name, stamp in facts.files.items():
                path = self.folder / f"{split}.{name}.bin"
                if not path.is_file() or sha256_of(path) != stamp.sha256:
                    raise UserError(f"{path}: is not as it was written (sha256): prepare the data again")


def open_stored(folder: Path, task: str) -> Stored:
    """A folder that was prepared for a task.

    Raises:
        UserError: nothing complete is there, or another task's.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(f"{folder}: no prepared data: run `python experiments/lra/prepare.py {task}` first")
    if manifest.task != task:
        raise UserError(f"{folder}: expected data of {task}, found that of {manifest.task}")
    return Stored(folder, manifest)
