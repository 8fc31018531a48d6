"""A row's order cannot be told from the tokens at its sides' edges, as it could where rows were cut anywhere."""

import numpy as np
import pytest
from sentence_order import Text, cut_anywhere, naive_bayes, packed

from nystromformer.data.preprocessing.docstrings import (
    documents_of_modules,
    find_sources,
    installed_sources,
    read_modules,
)
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.preprocessing.unified import Tally
from nystromformer.data.tokenizer import train_tokenizer


def check_that_order_is_not_told_by_edges(
    text: Text, length: int, told_before: float = 0.85, rows: int = 2000, told: float = 0.55
) -> np.ndarray:
    """The bounds of every corpus; returns each row's share of text.

    Args:
        told_before: of the orders of rows that are cut anywhere, at the least.
        rows: labelled rows that open no document, at the least.
        told: of the orders of those, at the most; half of them and what so many may differ from it by chance.
    """
    edges, opens, fills = packed(text, length)
    inner = [sides for sides, first in zip(edges, opens, strict=True) if not first]
    assert len(inner) > rows
    assert naive_bayes(cut_anywhere(text, length)) >= told_before
    assert naive_bayes(inner) < told
    assert naive_bayes(edges) < 0.65
    return fills


def docstrings(limit_mb: float, vocab_size: int) -> Text:
    """A sample of the docstrings of this machine."""
    modules = read_modules(find_sources(installed_sources()), limit_mb, 1)
    documents = list(documents_of_modules(modules, 20, Tally()))
    sentences = [sentence for document in documents for sentence in document.sentences]
    tokenizer = train_tokenizer(sentences[: len(sentences) // 4], vocab_size)
    return Text(tokenizer, list(encode_documents(documents, tokenizer)))


def test_a_few_docstrings() -> None:
    # scored on some 300 rows: the bound is four standard deviations from a half
    text = docstrings(0.5, 1000)
    assert check_that_order_is_not_told_by_edges(text, 128, rows=400, told=0.62).min() >= 0.8


@pytest.mark.slow
def test_docstrings() -> None:
    text = docstrings(3.5, 4096)
    assert check_that_order_is_not_told_by_edges(text, 256).min() >= 0.8
    _, _, fills = packed(text, 512)
    assert fills.min() >= 0.8
    assert fills.mean() >= 0.95
