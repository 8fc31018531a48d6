"""Splits of generated examples: the same for any number of processes, continued after a kill, none twice."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from nystromformer.data.preprocessing.pool import Report, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.errors import UserError
from nystromformer.kept import checked, read_kept, write_kept
from nystromformer.tasks.lra.stored import Example, Manifest, SplitFacts, StoredSplit, split_files, write_split

_CHUNK = 1000
"""Examples of a unit of work."""
_MOST_ATTEMPTS = 100
"""At an example that there is already."""


class Generator(Protocol):
    """What examples are drawn from; it pickles."""

    @property
    def kinds(self) -> int:
        """Of token."""

    @property
    def classes(self) -> int:
        """Of examples."""

    def settings(self) -> Mapping[str, Any]:
        """All that decides what is drawn, the seed included."""

    def example(self, split: str, number: int, attempt: int) -> Example:
        """A pure function of the settings and of these three."""


@dataclass(frozen=True)
class _Chunk:
    """Some examples of a split, as a unit of work; its result is written beside it."""

    generator: Generator
    folder: Path
    split: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.first}-{self.last}"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.json"

    def __call__(self, report: Report) -> SplitFacts:
        facts = write_split(
            self.folder, self.name, self._examples(report), self.generator.kinds, self.generator.classes
        )
        write_kept(self.record, asdict(facts))
        return facts

    def _examples(self, report: Report) -> Iterator[Example]:
        for number in range(self.first, self.last):
            example = self.generator.example(self.split, number, 0)
            report(sum(map(len, example[0])), 1)
            yield example

    def finished(self) -> SplitFacts | None:
        """What an earlier run wrote, where it is whole."""
        try:
            data = read_kept(self.record)
            return None if data is None else checked(SplitFacts, data)
        except ValueError:
            return None


def make_splits(
    folder: Path, generator: Generator, sizes: Mapping[str, int], workers: int
) -> tuple[dict[str, SplitFacts], int]:
    """Draw the splits into a folder; also how many examples were drawn anew, because there was the same already.

    Args:
        sizes: examples of each split.
        workers: processes.

    Raises:
        UserError: there are too few different examples.
    """
    said = json.dumps(dict(generator.settings()), sort_keys=True)
    # Of other settings nothing is continued.
    parts = folder / f"parts-{hashlib.sha256(said.encode()).hexdigest()[:12]}"
    chunks = [
        _Chunk(generator, parts, split, first, min(first + _CHUNK, size))
        for split, size in sizes.items()
        for first in range(0, size, _CHUNK)
    ]
    facts = {chunk.name: kept for chunk in chunks if (kept := chunk.finished()) is not None}
    missing = [chunk for chunk in chunks if chunk.name not in facts]
    try:
        with ReadingProgress("drawing", 0, counted="examples") as progress:
            for index, result in run_works(missing, workers, progress):
                facts[missing[index].name] = result
    except UserError:
        if not facts:
            _remove(folder, ())
        raise
    seen: set[bytes] = set()
    again = 0
    found: dict[str, SplitFacts] = {}
    # What is tested on comes first: the training examples give way.
    try:
        for split in reversed(list(sizes)):
            merging = _Merging(generator, [chunk for chunk in chunks if chunk.split == split], facts, seen)
            found[split] = write_split(folder, split, merging.examples(), generator.kinds, generator.classes)
            again += merging.again
    except UserError:
        _remove(folder, found)
        raise
    _remove_parts(folder)
    return {split: found[split] for split in sizes}, again


def _remove(folder: Path, splits: Iterable[str]) -> None:
    """What was drawn, and the splits that were written of it; nothing else that may lie there."""
    _remove_parts(folder)
    for split in splits:
        for path in split_files(folder, split):
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _remove_parts(folder: Path) -> None:
    """Those of other settings, too, which an interrupted command may have left."""
    for path in folder.glob("parts-*"):
        if re.fullmatch(r"parts-[0-9a-f]{12}", path.name):
            shutil.rmtree(path, ignore_errors=True)


class _Merging:
    """The examples of a split's chunks in their order, with others in the place of those that were seen."""

    def __init__(
        self, generator: Generator, chunks: list[_Chunk], facts: Mapping[str, SplitFacts], seen: set[bytes]
    ) -> None:
        self._generator, self._chunks, self._facts, self._seen = generator, chunks, facts, seen
        self.again = 0

    def examples(self) -> Iterator[Example]:
        for chunk in self._chunks:
            manifest = Manifest("", 256, 256, 1, "", {}, {chunk.name: self._facts[chunk.name]})
            stored = StoredSplit(chunk.folder, chunk.name, manifest)
            labels = stored.labels.tolist()
            for place, number in enumerate(range(chunk.first, chunk.last)):
                yield self._new((([stored.tokens(place).tobytes()], labels[place])), chunk.split, number)

    def _new(self, example: Example, split: str, number: int) -> Example:
        for attempt in range(1, _MOST_ATTEMPTS):
            digest = hashlib.blake2b(example[0][0], digest_size=16).digest()
            if digest not in self._seen:
                self._seen.add(digest)
                return example
            self.again += 1
            example = self._generator.example(split, number, attempt)
        raise UserError(
            f"{split}: after {number} examples there seem to be no other ones: ask for fewer, or for longer ones"
        )
