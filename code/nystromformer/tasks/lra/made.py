"""Splits of generated examples: the same for any number of processes, resumed after an interruption, none twice."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nystromformer.data.preprocessing.pool import Report, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.errors import UserError
from nystromformer.runs.store import Pieces, Store
from nystromformer.tasks.lra.stored import Example, SplitFacts, write_split

_CHUNK = 1000
"""Examples of a unit of work."""
_MOST_ATTEMPTS = 100
"""At an example that there is already."""
_HEAD = struct.Struct("<BQ")
"""Before an example's tokens in a finished chunk: its label, and how many tokens it has."""


class NoMoreExamples(UserError):
    """There are too few different examples, so that what was drawn is of no use."""


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
    """Some examples of a split, of one sequence each, as a unit of work; its result is a piece of the store."""

    generator: Generator
    pieces: Pieces
    split: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.first}-{self.last}"

    def __call__(self, report: Report) -> None:
        with self.pieces.write(self.name) as piece:
            for number in range(self.first, self.last):
                (tokens,), label = self.generator.example(self.split, number, 0)
                piece.write(_HEAD.pack(label, len(tokens)) + tokens)
                report(len(tokens), 1)

    def examples(self) -> Iterator[Example]:
        """What was drawn.

        Raises:
            UserError: the piece is not there any more.
        """
        content = self.pieces.read(self.name)
        if content is None:
            raise UserError(f"{self.pieces.folder}: the part {self.name} is gone: start the same command again")
        place = 0
        while place < len(content):
            label, length = _HEAD.unpack_from(content, place)
            place += _HEAD.size + length
            yield [content[place - length : place]], label


def make_splits(
    store: Store, generator: Generator, sizes: Mapping[str, int], workers: int
) -> tuple[dict[str, SplitFacts], int]:
    """Draw the splits into a store; also how many examples were drawn anew, because there was the same already.

    Args:
        sizes: examples of each split.
        workers: processes.

    Raises:
        NoMoreExamples: there are too few different examples.
        UserError: as the generator.
    """
    chunks = [
        _Chunk(generator, store.pieces, split, first, min(first + _CHUNK, size))
        for split, size in sizes.items()
        for first in range(0, size, _CHUNK)
    ]
    missing = [chunk for chunk in chunks if store.pieces.read(chunk.name) is None]
    with ReadingProgress("drawing", 0, counted="examples") as progress:
        for _ in run_works(missing, workers, progress):
            pass
    merging = _Merging(generator)
    found: dict[str, SplitFacts] = {}
    # What is tested on comes first: the training examples give way.
    for split in reversed(list(sizes)):
        examples = merging.examples([chunk for chunk in chunks if chunk.split == split])
        found[split] = write_split(store.whole, split, examples, generator.kinds, generator.classes)
    return {split: found[split] for split in sizes}, merging.again


class _Merging:
    """The examples of chunks in their order, with others in the place of those that were seen."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._seen: set[bytes] = set()
        self.again = 0

    def examples(self, chunks: list[_Chunk]) -> Iterator[Example]:
        for chunk in chunks:
            for number, example in enumerate(chunk.examples(), start=chunk.first):
                yield self._new(example, chunk.split, number)

    def _new(self, example: Example, split: str, number: int) -> Example:
        for attempt in range(1, _MOST_ATTEMPTS):
            digest = hashlib.blake2b(example[0][0], digest_size=16).digest()
            if digest not in self._seen:
                self._seen.add(digest)
                return example
            self.again += 1
            example = self._generator.example(split, number, attempt)
        raise NoMoreExamples(
            f"{split}: after {number} examples there seem to be no other ones: ask for fewer, or for longer ones"
        )
