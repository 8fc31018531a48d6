"""Encoding documents, and the files of rows."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from nystromformer.data.dataset import storage_dtype
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.data.preprocessing.rows import encode_documents
from nystromformer.data.tokenizer import train_tokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
DOCUMENTS = [
    Document(
        f"d{n}", f"g{n}", tuple(f"{WORDS[(n + k) % 8]} {WORDS[(n * k) % 8]} is {n * k}." for k in range(n % 7 * 5))
    )
    for n in range(40)
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer((sentence for document in DOCUMENTS for sentence in document.sentences), 300)


def test_encoding_keeps_text_and_sentence_starts(tokenizer: Tokenizer) -> None:
    for document, (tokens, starts) in zip(DOCUMENTS, encode_documents(DOCUMENTS, tokenizer), strict=True):
        assert tokenizer.decode(tokens.tolist()) == "".join(f" {sentence}" for sentence in document.sentences)
        parts = np.split(tokens, starts[1:]) if len(starts) else []
        assert [tokenizer.decode(part.tolist()) for part in parts] == [f" {text}" for text in document.sentences]


def test_special_tokens_spelt_out_in_text_are_text(tokenizer: Tokenizer) -> None:
    text = "an <s> a </s> or <mask> of <pad> <unk>"
    [(tokens, _)] = encode_documents([Document("a", "a", (text,))], tokenizer)
    assert tokens.min() > 4
    assert tokenizer.decode(tokens.tolist()) == " " + text


@pytest.mark.parametrize(("values", "dtype"), [(65536, "uint16"), (65537, "int32"), (50265, "uint16")])
def test_storage_dtype(values: int, dtype: str) -> None:
    assert storage_dtype(values) == dtype
