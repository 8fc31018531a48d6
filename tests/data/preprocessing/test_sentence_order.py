"""A row's order cannot be told from the tokens at its sides' edges, as it could where rows were cut anywhere."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from nystromformer.data.preprocessing.corpora.formats import Rules
from nystromformer.data.preprocessing.corpora.text import Tally
from nystromformer.data.preprocessing.corpora.unify import UnifySettings, unify
from nystromformer.data.preprocessing.corpus import Document, read_documents
from nystromformer.data.preprocessing.docstring_corpus import documents_of_modules
from nystromformer.data.preprocessing.docstrings import find_sources, installed_sources, read_modules
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.preprocessing.pretrained_tokenizer import read_tokenizer
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import special_tokens, train_tokenizer

DATA = Path(os.environ.get("NYSTROM_DATA", "/nonexistent"))
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
    for a, b, c, d in rows[1::2]:
        # in order, every token counts for the order that it was seen in more often
        chance = sum(
            np.log((counts[place][False, token] + 1) / (counts[place][True, token] + 1))
            for place, token in enumerate((a, b, c, d))
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


def check_that_order_is_not_told_by_edges(text: Text, length: int, told_before: float = 0.85) -> np.ndarray:
    """The bounds of every corpus; returns each row's share of text.

    Args:
        told_before: of the orders of rows that are cut anywhere, at the least.
    """
    edges, opens, fills = packed(text, length)
    inner = [sides for sides, first in zip(edges, opens, strict=True) if not first]
    assert len(inner) > 2000
    assert naive_bayes(cut_anywhere(text, length)) >= told_before
    assert naive_bayes(inner) < 0.55
    assert naive_bayes(edges) < 0.65
    return fills


def test_docstrings() -> None:
    modules = read_modules(find_sources(installed_sources()), 0, 3.5, 1)
    documents = list(documents_of_modules(modules, 20, Tally()))
    sentences = [sentence for document in documents for sentence in document.sentences]
    tokenizer = train_tokenizer(sentences[: len(sentences) // 4], 4096)
    text = Text(tokenizer, list(encode_documents(documents, tokenizer)))
    assert check_that_order_is_not_told_by_edges(text, 256).min() >= 0.8
    _, _, fills = packed(text, 512)
    assert fills.min() >= 0.8
    assert fills.mean() >= 0.95


real = pytest.mark.skipif(not (DATA / "wiki").is_dir(), reason="NYSTROM_DATA names no folder with wiki/ in it")


def encoded(documents: list[Document]) -> Text:
    tokenizer = read_tokenizer(DATA / "roberta-base", "roberta-base").tokenizer
    return Text(tokenizer, list(encode_documents(documents, tokenizer)))


@pytest.mark.data
@real
def test_wikipedia(tmp_path: Path) -> None:
    corpus = unify(DATA / "wiki", tmp_path, UnifySettings("wiki", Rules(128)))
    first = next(iter(corpus.shards))
    text = encoded([*islice(read_documents(tmp_path / first), 3600)])
    fills = check_that_order_is_not_told_by_edges(text, 512)
    assert fills.min() >= 0.8
    assert fills.mean() >= 0.95
    for length, least in ((512, 0.5), (4096, 0.08)):
        edges, _, fills = packed(text, length)
        assert len(edges) >= least * len(fills)


@pytest.mark.data
@real
@pytest.mark.parametrize(
    ("name", "told_before"),
    # Of sentences of a dozen tokens, some of those that are cut anywhere are cut between two.
    [("bookcorpus", 0.8), ("stories", 0.95)],
)
def test_novels(tmp_path: Path, name: str, told_before: float) -> None:
    corpus = unify(DATA / name, tmp_path, UnifySettings(name, Rules(lines_per_document=1000)))
    found = [document for shard in corpus.shards for document in read_documents(tmp_path / shard)]
    fills = check_that_order_is_not_told_by_edges(
        encoded(found if name == "bookcorpus" else found[::2]), 512, told_before
    )
    assert fills.min() >= 0.8
    assert fills.mean() >= 0.95
