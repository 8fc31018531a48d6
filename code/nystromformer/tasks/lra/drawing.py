"""Splits of drawn examples: the same for any number of processes, resumed after an interruption, no example twice."""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from nystromformer.data.preprocessing.pool import Report, run_works
from nystromformer.data.preprocessing.progress import ReadingProgress
from nystromformer.errors import UserError
from nystromformer.runs.store import Pieces, Store
from nystromformer.tasks.lra.store import Example, SplitFacts, write_split
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

Draw = Callable[[str, int, int], tuple[bytes, int]]
"""Tokens and label of an example, a pure function of its split, its number and the attempt at it; pickles."""
_CHUNK = 1000
"""Examples of a unit of work."""
_HEAD = struct.Struct("<IB")
"""Of an example in a piece: how many tokens it has, and its label; the tokens follow, a byte each."""
_MOST_ATTEMPTS = 100
"""At an example that there is already."""


class NoMoreExamples(UserError):
    """There are too few different examples, so that what was drawn is of no use."""


@dataclass(frozen=True)
class _Chunk:
    """Some examples of a split as a unit of work, which writes its piece itself."""

    pieces: Pieces
    draw: Draw
    split: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.first}-{self.last}"

    def __call__(self, report: Report) -> None:
        with self.pieces.write(self.name) as piece:
            for number in range(self.first, self.last):
                tokens, label = self.draw(self.split, number, 0)
                piece.write(_HEAD.pack(len(tokens), label) + tokens)
                report(len(tokens), 1)

    def read(self) -> Iterator[tuple[int, bytes, int]]:
        """Number, tokens and label of each example.

        Raises:
            UserError: the piece is not there.
        """
        content, at = self.pieces.read(self.name), 0
        if content is None:
            raise UserError(f"{self.pieces.folder}: the part {self.name} is gone: start the same command again")
        for number in range(self.first, self.last):
            size, label = _HEAD.unpack_from(content, at)
            at += _HEAD.size + size
            yield number, content[at - size : at], label


def draw_splits(
    store: Store, draw: Draw, sizes: Mapping[str, int], kinds: int, classes: int, workers: int, sequences: int = 1
) -> dict[str, SplitFacts]:
    """Draw the splits into a store.

    Args:
        sizes: examples of each split.
        kinds: of token.
        workers: processes.
        sequences: of an example, of equal length, one after another in what is drawn.

    Raises:
        NoMoreExamples: there are too few different examples.
        UserError: as `draw`.
    """
    chunks = [
        _Chunk(store.pieces, draw, split, first, min(first + _CHUNK, size))
        for split, size in sizes.items()
        for first in range(0, size, _CHUNK)
    ]
    missing = [chunk for chunk in chunks if store.pieces.read(chunk.name) is None]
    with ReadingProgress("drawing", 0, counted="examples") as progress:
        for _ in run_works(missing, workers, progress):
            pass
    seen: set[bytes] = set()

    def different_examples(split: str) -> Iterator[Example]:
        """The examples of a split in their order, with others in the place of those that were seen."""
        repeated = 0
        for chunk in (chunk for chunk in chunks if chunk.split == split):
            for number, tokens, label in chunk.read():
                attempt = 1
                while (digest := hashlib.blake2b(tokens, digest_size=16).digest()) in seen:
                    if attempt == _MOST_ATTEMPTS:
                        raise NoMoreExamples(
                            f"{split}: after {number} examples no different ones could be drawn: ask for fewer, or "
                            "for longer ones"
                        )
                    tokens, label = draw(split, number, attempt)
                    attempt += 1
                repeated += attempt - 1
                seen.add(digest)
                length = len(tokens) // sequences
                yield [tokens[number * length : (number + 1) * length] for number in range(sequences)], label
        if repeated:
            logger.info("%s: %s drawn again to avoid repetitions", split, number_of(repeated, "example"))

    # What is tested on comes first: the training examples give way.
    order = reversed(list(sizes))
    splits = {
        split: write_split(store.whole, split, different_examples(split), kinds, classes, sequences) for split in order
    }
    return {split: splits[split] for split in sizes}
