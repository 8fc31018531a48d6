"""An instance's long input, cut into rows that each have the question and candidates:

    <s> <question> q </question> <answer> c1 </answer> <answer> c2 </answer> … </s> support </s> support … </s>

What is before the first `</s>` is called the prefix. Supports are packed greedily, in order; none is dropped. Where the
candidates leave too little of a row to supports, they are divided over groups, and each group gets all supports.

Shapes: N tokens of a row, C candidates of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from nystromformer.data.tokenizer import special_tokens
from nystromformer.errors import UserError

Tokens = NDArray[np.int32]

_HEAD = 3
"""Tokens of the prefix besides question and candidates: `<s> <question> </question>`."""
_AROUND = 2
"""Tokens around a candidate."""
MARKERS = ("<question>", "</question>", "<answer>", "</answer>")
"""The special tokens that mark a question and its candidates, added to a tokenizer."""


class Markers(NamedTuple):
    """Ids of the tokens that rows are built with."""

    bos: int
    pad: int
    eos: int
    question: int
    end_question: int
    answer: int
    end_answer: int


def add_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer with MARKERS; their ids follow the vocabulary's last one, in this order; those that it
    has already keep theirs.
    """
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in MARKERS])
    return copy


def markers(tokenizer: Tokenizer) -> Markers:
    """Ids of the tokens that rows are built with, of a tokenizer with MARKERS."""
    special, ids = special_tokens(tokenizer), tokenizer.get_vocab()
    return Markers(special.bos, special.pad, special.eos, *(ids[token] for token in MARKERS))


class InstanceTokens(NamedTuple):
    """An instance's texts as token ids, without special tokens."""

    question: Tokens
    candidates: Sequence[Tokens]
    supports: Sequence[Tokens]

    @property
    def sizes(self) -> tuple[int, list[int], list[int]]:
        """Numbers of tokens: of the question, of each candidate and of each support."""
        return len(self.question), list(map(len, self.candidates)), list(map(len, self.supports))


class Piece(NamedTuple):
    """Tokens `begin` to `end` of a support."""

    support: int
    begin: int
    end: int


class Chunk(NamedTuple):
    """A row's content: candidates by number, pieces of supports, the row's tokens in all, and those of its prefix."""

    candidates: range
    pieces: Sequence[Piece]
    length: int
    prefix: int


class ChunkRow(NamedTuple):
    """A chunk's tokens (N,), its prefix' length, and the positions of its candidates' `<answer>` tokens (C,)."""

    tokens: Tokens
    prefix: int
    positions: NDArray[np.int64]


def cut(name: str, question: int, candidates: Sequence[int], supports: Sequence[int], length: int) -> list[Chunk]:
    """Cut an instance, of so many tokens without special ones, into chunks of at most `length` tokens: for each group
    of candidates, in order, those that together have all supports, in order; one chunk where there are none. Supports
    without tokens are in no chunk.
    """
    chunks: list[Chunk] = []
    for group in _groups(name, question, candidates, length, room=3 if any(supports) else 1):
        prefix = _HEAD + question + sum(candidates[group.start : group.stop]) + _AROUND * len(group)
        chunks += [Chunk(group, pieces, length - free, prefix) for pieces, free in _pack(supports, length - prefix)]
    return chunks


def row_of(chunk: Chunk, tokens: InstanceTokens, markers: Markers) -> ChunkRow:
    """The row of a chunk that was cut from these tokens."""
    opening, closing, separator = _array(markers.answer), _array(markers.end_answer), _array(markers.eos)
    parts = [_array(markers.bos, markers.question), tokens.question, _array(markers.end_question)]
    position = _HEAD + len(tokens.question)
    positions = []
    for number in chunk.candidates:
        positions.append(position)
        parts += [opening, tokens.candidates[number], closing]
        position += _AROUND + len(tokens.candidates[number])
    for support, begin, end in chunk.pieces:
        parts += [separator, tokens.supports[support][begin:end]]
    return ChunkRow(np.concatenate([*parts, separator]), position, np.asarray(positions, dtype=np.int64))


def _groups(name: str, question: int, candidates: Sequence[int], length: int, room: int) -> list[range]:
    """The fewest near-equal groups of candidates whose prefixes leave a quarter of the row, at least `room`, to the
    rest; where a candidate alone leaves less, as much as that one leaves.
    """
    widest = max(candidates)
    most = length - _HEAD - question - _AROUND - widest
    if most < room:
        raise UserError(
            f"{name}: its question of {question} tokens and its longest candidate of {widest} leave no room for "
            f"supports in rows of {length}: use a larger --length, at least {length - most + room}"
        )
    budget = length - _HEAD - question - min(max(-(-length // 4), room), most)
    ends = [0, *accumulate(size + _AROUND for size in candidates)]
    count = -(-ends[-1] // budget)
    # Ends at one candidate a group at the latest, since the budget holds the widest one.
    while True:
        bounds = [len(candidates) * group // count for group in range(count + 1)]
        if all(ends[stop] - ends[start] <= budget for start, stop in pairwise(bounds)):
            return [range(start, stop) for start, stop in pairwise(bounds)]
        count += 1


def _pack(supports: Sequence[int], room: int) -> Iterator[tuple[list[Piece], int]]:
    """Pieces of supports for rows with `room` tokens after the prefix, and how many tokens of each row are left.

    A support that fits whole in an empty row is not divided. A longer one begins in what is left of a row.
    """
    pieces: list[Piece] = []
    # The last token is the closing </s>; each piece has one before it.
    free = room - 1
    for number, size in enumerate(supports):
        begin = 0
        while begin < size:
            if size - begin >= free and (size + 2 <= room or free < 2):
                yield pieces, free
                pieces, free = [], room - 1
            end = min(size, begin + free - 1)
            pieces.append(Piece(number, begin, end))
            free -= end - begin + 1
            begin = end
    yield pieces, free


def _array(*ids: int) -> Tokens:
    return np.asarray(ids, dtype=np.int32)
