"""How much the edges of a row's sides tell of their order: the measure, and rows to compare with."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from nystromformer.data.preprocessing.corpora.files import divide, find_files
from nystromformer.data.preprocessing.corpora.formats import FORMATS, Rules
from nystromformer.data.preprocessing.corpora.unify import unify
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.preprocessing.pretrained_tokenizer import read_tokenizer
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import special_tokens

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent"))
RULES = {"wiki": Rules(128), "bookcorpus": Rules(lines_per_document=1000), "stories": Rules()}
SEPARATOR = -1
Sides = tuple[int, int, int, int]
"""First and last token of the side that comes first in the text, and of the other one."""


@dataclass(frozen=True)
class Text:
    """Encoded documents: tokens, and where sentences begin."""

    tokenizer: Tokenizer
    documents: list[tuple[np.ndarray, np.ndarray]]


def real_documents(name: str, folder: Path, chunks: int | None = None) -> Iterator[Document]:
    """Documents of one of the corpora in NYSTROM_DATA, made in `folder`.

    Args:
        chunks: how many of its chunks of files; None: all.
    """
    source = folder / "source"
    format = FORMATS[name]
    for chunk in divide(DATA / name, find_files(DATA / name, format.pattern)[0], format.cut)[:chunks]:
        for file in chunk.files:
            link = source / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(DATA / name / file)
    unified = unify(source, folder / "unified", format, RULES[name])
    assert unified is not None
    for shard in unified.shards:
        yield from read_documents(folder / "unified" / shard)


def encoded(documents: Sequence[Document]) -> Text:
    """With RoBERTa's tokenizer, from NYSTROM_DATA."""
    tokenizer = read_tokenizer(DATA / "roberta-base")
    return Text(tokenizer, list(encode_documents(documents, tokenizer)))


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
