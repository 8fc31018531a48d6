"""Encoding documents, and the files of rows."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from nystromformer.data.manifest import storage_dtype
from nystromformer.data.preprocessing.corpus import Document
from nystromformer.data.preprocessing.packing import Packer
from nystromformer.data.preprocessing.rows import RowWriter, encode_documents
from nystromformer.data.tokenizer import special_tokens, train_tokenizer

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


def write_rows(folder: Path, tokenizer: Tokenizer) -> RowWriter:
    with ExitStack() as stack:
        writer = RowWriter(stack, folder, "train", tokenizer.get_vocab_size(), special_tokens(tokenizer), 32)
        for tokens_T, starts in encode_documents(DOCUMENTS, tokenizer):
            writer.add(tokens_T, starts)
    return writer


def test_written_rows_are_the_packed_ones(tmp_path: Path, tokenizer: Tokenizer) -> None:
    result = write_rows(tmp_path, tokenizer)
    packer = Packer(32, special_tokens(tokenizer))
    parts = [packer.add(*document) for document in encode_documents(DOCUMENTS, tokenizer)]
    rows, splits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    assert np.array_equal(np.fromfile(tmp_path / "train.tokens.bin", "<u2").reshape(-1, 32), rows)
    assert np.array_equal(np.fromfile(tmp_path / "train.splits.bin", "<u2"), splits)
    assert result.counts == {
        "documents": sum(bool(document.sentences) for document in DOCUMENTS),
        "tokens": packer.tokens,
        "rows": len(rows),
        "sentence_order_rows": np.count_nonzero(splits),
        "padding": (rows == special_tokens(tokenizer).pad).sum(),
        "dropped_tokens": packer.pending,
    }
    assert result.counts["padding"] > 0 < result.counts["sentence_order_rows"]
    assert {path.name: stamp.size for path, stamp in result.files.items()} == {
        "train.tokens.bin": rows.size * 2,
        "train.splits.bin": len(rows) * 2,
    }


@pytest.mark.parametrize(("values", "dtype"), [(65536, "uint16"), (65537, "int32"), (50265, "uint16")])
def test_storage_dtype(values: int, dtype: str) -> None:
    assert storage_dtype(values) == dtype
