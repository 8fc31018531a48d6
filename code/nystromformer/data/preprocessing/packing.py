"""How documents are cut into rows.

    <s> A </s> B </s>   whole sentences of one document; `split` is the index of B's first token
    <s> content </s>    any other row; `split` is 0: it has no sentence-order label

Only the text may tell the order of A and B (data-preprocessing/README.md, "Rows"): such rows are padded behind their
last sentence; B's first sentence is drawn near the middle by its length; what a document's rows leave over is taken
from both of its ends. These pieces are packed across documents into rows of the second kind.

Shapes: R rows, N tokens of a row, T tokens of a document, S sentences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import random_uniform
from nystromformer.data.dataset import Counts
from nystromformer.data.tokenizer import SpecialTokens

MIN_LENGTH, MAX_LENGTH = 8, 10**7
"""Tokens of a row."""
_CUT_STREAM = 6


class Packer:
    """Cuts documents into rows, by the documents and their order alone; holds less than a row between documents."""

    def __init__(self, length: int, special: SpecialTokens) -> None:
        assert length >= MIN_LENGTH, "room for two sentences"
        self.length = length
        self._special = special
        self.counts = dict.fromkeys(Counts.model_fields, 0)
        """Of what was added and cut so far; what fills no row yet is dropped."""
        # a row of two sides holds one token of text less than another
        self._room = length - 3
        # four fifths, where the row has room for so much
        self._least = min(-(-4 * length // 5), self._room)
        self._left_T = np.empty(0, np.int32)

    def add(self, tokens_T: NDArray[np.int32], sentence_starts: NDArray[np.int64]) -> tuple[np.ndarray, np.ndarray]:
        """Cut a document into rows, and what was left of it and those before, where that fills rows: (R, N) and splits
        (R,). An empty document is ignored.

        Args:
            sentence_starts: indices into `tokens_T` at which a sentence begins, ascending, the first one 0.
        """
        rows: list[np.ndarray] = []
        splits: list[int] = []
        if len(tokens_T):
            ends_S = np.append(sentence_starts[1:], len(tokens_T))
            first = at = self._first_row(ends_S)
            number = 0
            while len(tokens_T) - at >= self._least:
                number += 1
                end, head = self._cut(ends_S, at, number)
                rows.append(self._row(tokens_T[at:end], head))
                splits.append(head + 2 if head else 0)
                at = end
            self._leave(tokens_T[:first])
            self._leave(tokens_T[at:])
            self.counts["documents"] += 1
            self.counts["tokens"] += len(tokens_T)
        for content in self._full_rows():
            rows.append(self._row(content, 0))
            splits.append(0)
        self.counts["rows"] += len(rows)
        self.counts["sentence_order_rows"] += int(np.count_nonzero(splits))
        self.counts["dropped_tokens"] = len(self._left_T)
        return np.array(rows, np.int32).reshape(-1, self.length), np.array(splits, np.int32)

    def _first_row(self, ends_S: NDArray[np.int64]) -> int:
        """Where a document's first row begins: the sentence at a random token of those that its rows leave over."""
        whole, over = divmod(int(ends_S[-1]), self._room)
        if not whole or over >= self._least:
            return 0
        sentence = int(np.searchsorted(ends_S, int(self._draw(0) * (over + 1)), side="right"))
        return int(ends_S[sentence - 1]) if sentence else 0

    def _cut(self, ends_S: NDArray[np.int64], at: int, number: int) -> tuple[int, int]:
        """Where a document's row from `at` on ends, and how many of its tokens are A's, 0 for no label."""
        passed = int(np.searchsorted(ends_S, at, side="right"))
        is_whole = at == (ends_S[passed - 1] if passed else 0)
        fitting = self._fitting(ends_S, at, self._room)
        if is_whole and fitting:
            head = draw_head(ends_S[passed:fitting] - at, self._draw(number))
            if head:
                return int(ends_S[fitting - 1]), head
        fitting = self._fitting(ends_S, at, self._room + 1)
        return (int(ends_S[fitting - 1]) if fitting else at + self._room + 1), 0

    def _fitting(self, ends_S: NDArray[np.int64], at: int, room: int) -> int:
        """How many sentences end before `at + room`; 0 if the row from `at` on to their end is too empty."""
        fitting = int(np.searchsorted(ends_S, at + room, side="right"))
        return fitting if fitting and ends_S[fitting - 1] - at >= self._least else 0

    def _draw(self, number: int) -> float:
        return float(random_uniform(_CUT_STREAM, self.counts["documents"], number)[0])

    def _leave(self, piece_T: NDArray[np.int32]) -> None:
        if len(piece_T):
            separator = np.full(int(len(self._left_T) > 0), self._special.eos, np.int32)
            self._left_T = np.concatenate([self._left_T, separator, piece_T])

    def _full_rows(self) -> list[np.ndarray]:
        """The content of the full rows among the left pieces; a separator that would open a row is dropped."""
        left_T, room = self._left_T, self.length - 2
        at, contents = 0, []
        while True:
            at += int(at < len(left_T) and left_T[at] == self._special.eos)
            if len(left_T) - at < room:
                break
            contents.append(left_T[at : at + room])
            at += room
        self._left_T = left_T[at:].copy()
        return contents

    def _row(self, content: np.ndarray, head: int) -> np.ndarray:
        row_N = np.full(self.length, self._special.pad, np.int32)
        row_N[0] = self._special.bos
        row_N[1 : head + 1] = content[:head]
        if head:
            row_N[head + 1] = self._special.eos
        tail = head + 2 if head else 1
        end = tail + len(content) - head
        row_N[tail:end] = content[head:]
        row_N[end] = self._special.eos
        self.counts["padding"] += self.length - end - 1
        return row_N


def draw_head(ends_S: NDArray[np.int64], draw: float) -> int:
    """Tokens of A: before a sentence that begins at 25 to 75 % of the content, drawn by its length; 0 for none.

    Args:
        ends_S: where each sentence of the content ends, ascending; the last one is the content's size.
        draw: a uniform number in [0, 1).
    """
    size = ends_S[-1]
    begins_S, lengths_S = ends_S[:-1], np.diff(ends_S)
    near = (4 * begins_S >= size) & (4 * begins_S <= 3 * size)
    if not near.any():
        return 0
    begins_S, upto_S = begins_S[near], np.cumsum(lengths_S[near])
    return int(begins_S[np.searchsorted(upto_S, draw * upto_S[-1], side="right")])
