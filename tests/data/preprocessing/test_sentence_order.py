"""A row's order cannot be told from the tokens at its sides' edges."""

from collections import Counter
from collections.abc import Sequence
from math import log

import numpy as np

from nystromformer.data.preprocessing.corpus import Tally
from nystromformer.data.preprocessing.docstrings import (
    documents_of_modules,
    find_sources,
    installed_sources,
    read_modules,
)
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import special_tokens, train_tokenizer

LENGTH = 128
Sides = tuple[int, int, int, int]
"""First and last token of the side that comes first in the text, and of the other one."""


def naive_bayes(rows: Sequence[Sides]) -> float:
    """Share of orders told by the four tokens, fitted on every other row and scored on the rest."""
    counts: list[Counter[tuple[bool, int]]] = [Counter() for _ in range(4)]
    for a, b, c, d in rows[::2]:
        for swapped, seen in ((False, (a, b, c, d)), (True, (c, d, a, b))):
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


def test_docstrings() -> None:
    """Of those of this machine; rows that open a document begin as documents do, and so tell a little."""
    modules = read_modules(find_sources(installed_sources()), 0.5, 1)
    documents = list(documents_of_modules(modules, 20, Tally()))
    sentences = [sentence for document in documents for sentence in document.sentences]
    tokenizer = train_tokenizer(sentences[: len(sentences) // 4], 1000)
    texts = list(encode_documents(documents, tokenizer))
    packer = Packer(LENGTH, special_tokens(tokenizer))
    rows, splits = (np.concatenate(arrays) for arrays in zip(*[packer.add(*text) for text in texts], strict=True))
    valid = (rows != special_tokens(tokenizer).pad).sum(1)
    assert ((valid - 2 - (splits > 0)) / LENGTH).min() >= 0.8
    openings = {tuple(tokens[:12].tolist()) for tokens, _ in texts}
    edges: list[tuple[bool, Sides]] = []
    for row, split, size in zip(rows, splits, valid, strict=True):
        if split:
            sides = (int(row[1]), int(row[split - 2]), int(row[split]), int(row[size - 2]))
            edges.append((tuple(row[1:13].tolist()) in openings, sides))
    inner = [sides for opens, sides in edges if not opens]
    assert len(inner) > 400
    # scored on some 300 rows: the bound is four standard deviations from a half
    assert naive_bayes(inner) < 0.62
    assert naive_bayes([sides for _, sides in edges]) < 0.65
