"""A task's examples on disk, rows of bytes of any length with a manifest; and how they are prepared: drawn in parts, or
read from a source.

A split has three files: `<split>.tokens.bin`, all sequences one after another, a byte each token; `<split>.ends.bin`,
where each ends, int64, little-endian; `<split>.labels.bin`, a byte each example.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import permute
from nystromformer.data.preprocessing.pool import Made, make_parts
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, read_record, write_checked
from nystromformer.files.parts import PARTS, Parts, open_parts
from nystromformer.files.writing import FileStamp, NewFile, check_stamps
from nystromformer.wording import number_of

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
    """Write the files of a split, whole or not at all; a sequence keeps so many tokens, or all."""
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


HELD_OUT = 0.1
"""Share of the training examples for each split that a source lacks."""
_STREAM = 40
Draw = Callable[[str, int, int], tuple[bytes, int]]
"""Tokens and label of an example, a pure function of its split, its number and the attempt at it; pickles."""
_CHUNK = 1000
"""Drawn examples of a part."""
_HEAD = struct.Struct("<IB")
"""Of an example in a part: how many tokens it has, and its label; the tokens follow, a byte each."""
_MOST_ATTEMPTS = 100
"""At an example that there is already."""


def prepare_drawn(
    folder: Path,
    data: TaskData,
    draw: Draw,
    settings: Mapping[str, Any],
    sizes: Mapping[str, int],
    workers: int,
    warnings: list[str],
) -> Stored:
    """Draw a task's data into a folder, or resume it: the same for any number of processes, no example twice.

    Args:
        settings: all that decides what `draw` gives, but for the sizes of the splits.
        warnings: why results do not compare with published ones.
    """
    seen: set[bytes] = set()

    def write(parts: Parts) -> tuple[dict[str, SplitFacts], list[str]]:
        works = {
            f"{split}-{first}": partial(_draw_part, parts.folder, draw, split, range(first, min(first + _CHUNK, size)))
            for split, size in sizes.items()
            for first in range(0, size, _CHUNK)
        }
        make_parts(parts, works, workers, "drawing")
        # What is tested on comes first: the training examples give way.
        splits = {split: write_split(folder, split, different(parts, split), data) for split in reversed(SPLITS)}
        return {split: splits[split] for split in SPLITS}, warnings

    def different(parts: Parts, split: str) -> Iterator[Example]:
        """The examples of a split in their order, with others in the place of those that were seen."""
        drawn = (parts.read(f"{split}-{first}") for first in range(0, sizes[split], _CHUNK))
        for number, (tokens, label) in enumerate(chain.from_iterable(map(_examples_in, drawn))):
            attempt = 1
            while (digest := hashlib.blake2b(tokens, digest_size=16).digest()) in seen:
                if attempt == _MOST_ATTEMPTS:
                    raise UserError(
                        f"{split}: after {number} examples no different ones could be drawn: ask for fewer, or for "
                        "longer ones"
                    )
                tokens, label = draw(split, number, attempt)
                attempt += 1
            seen.add(digest)
            length = len(tokens) // data.sequences
            yield [tokens[start : start + length] for start in range(0, len(tokens), length)], label

    return write_data(folder, data, {**settings, "sizes": dict(sizes)}, write)


def _draw_part(folder: Path, draw: Draw, split: str, numbers: range) -> Made:
    with NewFile(folder / f"{split}-{numbers.start}") as file:
        for number in numbers:
            tokens, label = draw(split, number, 0)
            file.write(_HEAD.pack(len(tokens), label) + tokens)
    return {file.path: file.stamp}, {}


def _examples_in(part: bytes | None) -> Iterator[tuple[bytes, int]]:
    assert part is not None, "it was drawn"
    at = 0
    while at < len(part):
        size, label = _HEAD.unpack_from(part, at)
        at += _HEAD.size + size
        yield part[at - size : at], label


def carve(count: int, parts: int, seed: int, key: int) -> list[NDArray[np.int64]]:
    """Numbers 0 … count-1 divided at random: what is left, and then so many parts of `HELD_OUT` of them each."""
    size = max(1, round(HELD_OUT * count))
    if parts * size >= count:
        raise UserError(f"{count} examples are too few to be divided into training, validation and test")
    order = permute(np.arange(count), count, seed, _STREAM, key)
    ends = [count - number * size for number in range(parts + 1)]
    held_out = [np.sort(order[end - size : end]) for end in ends[:-1]]
    return [np.sort(order[: ends[-1]]), *held_out]


def compare_sizes(sizes: Mapping[str, int], official: Mapping[str, int]) -> list[str]:
    """A sentence for each split of another size than the official one."""
    return [
        f"{split} has {number_of(size, 'example')}, the official one has {official[split]:,}: figures on it do not "
        "compare with published ones"
        for split, size in sizes.items()
        if size != official[split]
    ]


def write_data(
    folder: Path,
    data: TaskData,
    settings: dict[str, Any],
    write: Callable[[Parts], tuple[dict[str, SplitFacts], list[str]]],
) -> Stored:
    """Have the files of a task's data written into a folder, the manifest last.

    Args:
        settings: all that decides what the data are.
        write: writes all splits; gives also what results should warn of.
    """
    results = [path for split in SPLITS for path in split_files(folder, split).values()] + [folder / MANIFEST_FILE]
    with open_parts(folder / PARTS, f"experiments/lra/prepare.py {data.task}", settings, results) as parts:
        if not (folder / MANIFEST_FILE).exists():
            splits, warnings = write(parts)
            write_checked(folder / MANIFEST_FILE, asdict(Manifest(data, settings, splits, warnings)))
        parts.remove()
    return open_stored(folder, data.task)


def describe(stored: Stored) -> str:
    """What a command says at its end: of each split how many, how long, what was cut, and the labels."""
    lines = []
    for name, facts in stored.manifest.splits.items():
        split = stored.split(name)
        labels = ", ".join(f"{100 * count / len(split):.1f} %" for count in np.bincount(split.labels).tolist())
        cut = f", {facts.cut:,} cut ({100 * facts.cut / split.lengths.size:.1f} %)" if facts.cut else ""
        lines.append(
            f"{name}: {number_of(len(split), 'example')}, {split.lengths.min():,} to {split.lengths.max():,} tokens, "
            f"{split.lengths.mean():,.0f} on average{cut}; classes {labels}"
        )
    lines += [f"warning: {text}" for text in stored.manifest.warnings]
    return "\n".join([*lines, f"data: {stored.folder}"])
