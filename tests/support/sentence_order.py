"""How much the edges of a row's sides tell of their order: the measure, and rows to compare with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from tokenizers import Tokenizer

from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.tokenizer import special_tokens

SEPARATOR = -1
Sides = tuple[int, int, int, int]
"""First and last token of the side that comes first in the text, and of the other one."""


@dataclass(frozen=True)
class Text:
    """Encoded documents: tokens, and where sentences begin."""

    tokenizer: Tokenizer
    documents: list[tuple[np.ndarray, np.ndarray]]


def naive_bayes(rows: Sequence[Sides]) -> float:
    """Share of orders told by the four tokens, fitted on every other row and scored on the rest."""

    def read(first: tuple[int, int], second: tuple[int, int]) -> Sides:
        return (*first, *second)

    counts: list[Counter[tuple[bool, int]]] = [Counter() for _ in range(4)]
    for a, b, c, d in rows[::2]:
        for swapped, seen in ((False, read((a, b), (c, d))), (True, read((c, d), (a, b)))):
            for place, token in enumerate(seen):
                counts[place][swapped, token] += 1
    right = 0.0
    for sides in rows[1::2]:
        # in order, every token counts for the order that it was seen in more often
        chance = sum(
            log((counts[place][False, token] + 1) / (counts[place][True, token] + 1))
            for place, token in enumerate(sides)
        )
        # equal edges say nothing; rounding shall not decide for all such rows alike
        right += 0.5 if abs(chance) < 1e-9 else float(chance > 0)
    return right / len(rows[1::2])


def packed(text: Text, length: int) -> tuple[list[Sides], list[bool], np.ndarray]:
    """The edges of labelled rows, whether each row opens a document, and the share of each row that is text."""
    packer = Packer(length, special_tokens(text.tokenizer))
    parts = [packer.add(*document) for document in text.documents]
    rows, splits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    valid = (rows != special_tokens(text.tokenizer).pad).sum(1)
    openings = {tuple(tokens[:12].tolist()) for tokens, _ in text.documents}
    edges, opens = [], []
    for row, split, size in zip(rows, splits, valid, strict=True):
        if split:
            edges.append((int(row[1]), int(row[split - 2]), int(row[split]), int(row[size - 2])))
            opens.append(tuple(row[1:13].tolist()) in openings)
    return edges, opens, (valid - 2 - (splits > 0)) / length


def cut_anywhere(text: Text, length: int) -> list[Sides]:
    """The edges of rows as they once were: a stream of documents cut every so many tokens, parted at a sentence."""
    stream, begins = [], []
    for tokens, starts in text.documents:
        begins += [len(stream) + int(start) for start in starts]
        stream += [*tokens.tolist(), SEPARATOR]
    marks = np.zeros(len(stream), bool)
    marks[begins] = True
    separators = np.array(stream) == SEPARATOR
    room, edges = length - 3, []
    for at in range(0, len(stream) - room, room):
        heads = np.flatnonzero(marks[at : at + room])
        heads = heads[(4 * heads >= room) & (4 * heads <= 3 * room)]
        if len(heads) and not separators[at : at + room].any():
            head = at + int(heads[np.abs(2 * heads - room).argmin()])
            edges.append((stream[at], stream[head - 1], stream[head], stream[at + room - 1]))
    return edges
