"""A row's order cannot be told from the tokens at its sides' edges, as it could where rows were cut anywhere."""

from sentence_order import Text, cut_anywhere, naive_bayes, packed

from nystromformer.data.preprocessing.corpus import Tally
from nystromformer.data.preprocessing.docstrings import (
    documents_of_modules,
    find_sources,
    installed_sources,
    read_modules,
)
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import train_tokenizer


def test_docstrings() -> None:
    """A sample of this machine's, scored on some 300 rows: the bound is four standard deviations from a half."""
    modules = read_modules(find_sources(installed_sources()), 0.5, 1)
    documents = list(documents_of_modules(modules, 20, Tally()))
    sentences = [sentence for document in documents for sentence in document.sentences]
    tokenizer = train_tokenizer(sentences[: len(sentences) // 4], 1000)
    text = Text(tokenizer, list(encode_documents(documents, tokenizer)))
    edges, opens, fills = packed(text, 128)
    inner = [sides for sides, first in zip(edges, opens, strict=True) if not first]
    assert len(inner) > 400
    assert naive_bayes(cut_anywhere(text, 128)) >= 0.85
    assert naive_bayes(inner) < 0.62
    assert naive_bayes(edges) < 0.65
    assert fills.min() >= 0.8
