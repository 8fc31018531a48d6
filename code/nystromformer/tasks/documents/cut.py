"""Texts that are longer than a row: they lose their end, or become several rows.

Shapes: I examples.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints, Texts

_LEAST_ROOM = 4
"""Tokens of a window at least, beside the special ones and a pair's other text."""


@dataclass(frozen=True)
class Cut:
    """What becomes of a text that is longer than a row."""

    __pydantic_config__ = STRICT

    rule: Literal["head", "windows"] = "head"
    overlap: int | None = None
    """Tokens that two windows share at least; None: an eighth of a row's length."""


def cut_of(text: str | None) -> Cut | None:
    """What --cut names, such as `windows,overlap=64`; None where nothing is asked for."""
    if text is None:
        return None
    if text == "head":
        return Cut()
    rule, comma, overlap = text.partition(",overlap=")
    if rule != "windows" or (comma and not overlap.isdecimal()):
        raise UserError(f"--cut {text}: expected one of head, windows, or windows,overlap=TOKENS")
    return Cut("windows", int(overlap) if comma else None)


def encode_cut(texts: Texts, tokenizer: Tokenizer, length: int, sentence_types: bool, cut: Cut) -> EncodedTexts:
    """A split's texts in rows of at most `length` tokens."""
    if cut.rule == "head":
        return EncodedTexts(texts, tokenizer, length, sentence_types)
    overlap = length // 8 if cut.overlap is None else cut.overlap
    return WindowTexts(texts, tokenizer, length, sentence_types, overlap)


class WindowTexts(EncodedTexts):
    """The texts of a split, of which a longer one becomes several rows of near-equal steps over its tokens; of a pair
    over the longer text, each with the whole of the other one, or with the first half of what a row has room for.

    Implements Examples: an example takes a row for each of its windows. `tokens_of` gives it before it becomes windows.
    """

    def __init__(self, texts: Texts, tokenizer: Tokenizer, length: int, sentence_types: bool, overlap: int) -> None:
        self._overlap = overlap
        room = length - (2 if texts.second is None else 3)
        if overlap + _LEAST_ROOM > (room if texts.second is None else room - room // 2):
            raise UserError(
                f"--cut windows,overlap={overlap}: expected windows of --length {length} to advance by at least "
                f"{_LEAST_ROOM} tokens; use a smaller overlap or a larger length"
            )
        # The whole of each, of which the rows are taken.
        super().__init__(texts, tokenizer, MOST, sentence_types)
        self._room = room
        self._sizes = self.lengths
        # Tokens of each example's first text. No text holds the token of `</s>`.
        tokens = map(self.tokens_of, range(len(texts)))
        self._firsts = np.fromiter((int(np.argmax(row == self._separator)) - 1 for row in tokens), np.int64)
        is_longer = self.own_tokens > room
        self.truncated = int(is_longer.sum())
        # Of a pair's shorter text no more than half a row is read.
        self.is_cut = is_longer & (np.minimum(self._firsts, self.own_tokens - self._firsts) > room // 2)
        sizes = [[len(places) for places in self.places_of(number)] for number in range(len(texts))]
        counts = [(max(each), len(each), sum(each)) for each in sizes]
        self.lengths, self.rows, self.tokens = np.asarray(counts, dtype=np.int64).reshape(-1, 3).T.copy()
        self.fingerprint = hashlib.sha256(f"windows {overlap} {length} {self.fingerprint}".encode()).hexdigest()

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        """The windows of these examples, one example's after the other's; with `rows_I`, how many each has (int64)."""
        batch = super().batch(numbers, pad_to)
        if self._with_types:
            batch["types_BN"] *= batch["mask_BN"]  # unlike that of uncut rows, padding is of type 0
        return batch | {"rows_I": torch.from_numpy(self.rows[numbers])}

    def places_of(self, number: int) -> list[Ints]:
        first = int(self._firsts[number])
        sizes = first, int(self._sizes[number]) - first - self._special
        firsts, seconds = map(np.arange, sizes)
        if sum(sizes) <= self._room:
            return [self._row(sizes, firsts, seconds)]
        # A pair's shorter text is in every row, as WikiHop's question is.
        is_first = sizes[0] >= sizes[1]
        longer, other = (firsts, seconds) if is_first else (seconds, firsts)
        other = other[: self._room // 2]
        room = self._room - len(other)
        windows = (longer[start : start + room] for start in window_starts(len(longer), room, self._overlap))
        return [self._row(sizes, *((window, other) if is_first else (other, window))) for window in windows]

    def _row(self, sizes: tuple[int, int], first: Ints, second: Ints) -> Ints:
        """Where a row's tokens stand in the whole of an example: these ones of its texts, and the special ones."""
        places: Ints = np.r_[0, 1 + first, sizes[0] + 1]
        if self.texts.second is not None:
            places = np.r_[places, sizes[0] + 2 + second, sum(sizes) + 2]
        return places


def window_starts(size: int, room: int, overlap: int) -> list[int]:
    """Where the windows over `size` tokens begin: the fewest of `room` tokens that share `overlap` or more with the
    next one, at near-equal steps from the first token to the last.
    """
    if size <= room:
        return [0]
    count = -(-(size - overlap) // (room - overlap))
    return [number * (size - room) // (count - 1) for number in range(count)]
