"""Packing: every token is kept in order, every row is full, split points follow the rule."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nystromformer.data.corpus import Document
from nystromformer.data.rows import Packer, encode_documents, storage_dtype, write_rows
from nystromformer.data.tokenizer import special_tokens, train_tokenizer
from nystromformer.errors import UserError

BOS, SEPARATOR = 0, 2
FIRST_ID = 10

# documents as lengths of their sentences
SHAPES = st.lists(st.lists(st.integers(1, 25), min_size=0, max_size=12), max_size=20)


def make_documents(shapes: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Documents of the given sentence lengths; no two tokens of all are equal, so that none can be mistaken."""
    documents = []
    begin = FIRST_ID
    for lengths in shapes:
        tokens = np.arange(begin, begin + sum(lengths), dtype=np.int32)
        documents.append((tokens, np.cumsum([0, *lengths])[:-1] if lengths else np.empty(0, np.int64)))
        begin += sum(lengths)
    return documents


def pack(documents: list[tuple[np.ndarray, np.ndarray]], length: int) -> tuple[np.ndarray, np.ndarray, Packer]:
    packer = Packer(length, BOS, SEPARATOR)
    parts = [packer.add(*document) for document in documents]
    rows = np.concatenate([np.empty((0, length), np.int32), *(rows for rows, _ in parts)])
    return rows, np.concatenate([np.empty(0, np.int32), *(splits for _, splits in parts)]), packer


def expected_head(window: list[int], starts: set[int]) -> int:
    """The split rule, written plainly: tokens of A among the content tokens `window`, 0 for no split."""
    if SEPARATOR in window:
        return 0
    size = len(window)
    heads = [head for head in range(1, size) if window[head] in starts and 0.25 <= head / size <= 0.75]
    return min(heads, key=lambda head: (abs(head - size / 2), head), default=0)


@settings(max_examples=300)
@given(SHAPES, st.integers(8, 40))
def test_rows_are_the_stream_cut_by_the_rule(shapes: list[list[int]], length: int) -> None:
    documents = make_documents(shapes)
    rows, splits, packer = pack(documents, length)
    stream: list[int] = []
    for tokens, _ in documents:
        if len(tokens):
            stream += [SEPARATOR] * bool(stream) + tokens.tolist()
    starts = {int(tokens[index]) for tokens, indices in documents for index in indices}

    assert packer.tokens == len(stream)
    assert packer.documents == sum(bool(sum(lengths)) for lengths in shapes)
    at = 0
    for row, split in zip(rows.tolist(), splits.tolist(), strict=True):
        at += stream[at] == SEPARATOR
        head = expected_head(stream[at : at + length - 3], starts)
        size = length - 3 if head else length - 2
        content = stream[at : at + size]
        assert len(content) == size
        if head:
            assert row == [BOS, *content[:head], SEPARATOR, *content[head:], SEPARATOR]
            assert row[split] in starts
            assert split == head + 2
        else:
            assert row == [BOS, *content, SEPARATOR]
            assert split == 0
        at += size
    # what is left fills no row: it is all counted, but for a separator that would open one
    rest = len(stream) - at - (at < len(stream) and stream[at] == SEPARATOR)
    assert packer.pending == rest
    assert rest < length - 2
    assert rest < length - 3 or not expected_head(stream[-rest:], starts)


@pytest.mark.parametrize(
    ("sentences", "split"),
    [
        ([20, 20], 22),  # the boundary in the middle
        ([10, 30], 12),  # 25 % before it: still allowed
        ([9, 31], 0),
        ([30, 10], 32),  # 75 %
        ([31, 9], 0),
        ([18, 4, 18], 20),  # equally near: the first
        ([10, 8, 5, 17], 20),
        ([40], 0),
    ],
)
def test_split_points(sentences: list[int], split: int) -> None:
    _, splits, _ = pack(make_documents([[*sentences, 50]]), 43)
    assert splits[0] == split


def test_a_row_that_touches_two_documents_has_no_split_point() -> None:
    rows, splits, _ = pack(make_documents([[10, 10], [10, 10]]), 43)
    assert rows[0].tolist() == [BOS, *range(10, 30), SEPARATOR, *range(30, 50), SEPARATOR]
    assert splits.tolist() == [0]


def test_a_separator_that_would_open_a_row_is_dropped() -> None:
    rows, _, packer = pack(make_documents([[8], [8]]), 10)
    assert rows.tolist() == [[BOS, *range(10, 18), SEPARATOR], [BOS, *range(18, 26), SEPARATOR]]
    assert (packer.tokens, packer.pending) == (17, 0)


def test_a_length_without_room_is_refused() -> None:
    with pytest.raises(UserError, match=r"--length: expected at least 8, found 7"):
        Packer(7, BOS, SEPARATOR)


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


def test_empty_sentences_are_no_boundary(tokenizer: Tokenizer) -> None:
    [(tokens, starts)] = encode_documents([Document("a", "a", ("", "alpha", "", "beta", ""))], tokenizer)
    assert len(starts) == 2
    assert starts[1] < len(tokens)


def test_written_rows_are_the_packed_ones(tmp_path: Path, tokenizer: Tokenizer) -> None:
    result = write_rows(tmp_path, "train", iter(DOCUMENTS), tokenizer, special_tokens(tokenizer), 32)
    rows, splits, packer = pack(list(encode_documents(DOCUMENTS, tokenizer)), 32)
    assert np.array_equal(np.fromfile(tmp_path / "train.tokens.bin", "<u2").reshape(-1, 32), rows)
    assert np.array_equal(np.fromfile(tmp_path / "train.splits.bin", "<u2"), splits)
    assert (result.rows, result.tokens, result.dropped_tokens) == (len(rows), packer.tokens, packer.pending)
    assert result.sentence_order_rows == np.count_nonzero(splits) > 0
    assert result.documents == sum(bool(document.sentences) for document in DOCUMENTS)
    assert {name: stamp.size for name, stamp in result.files.items()} == {
        "train.tokens.bin": rows.size * 2,
        "train.splits.bin": len(rows) * 2,
    }


def test_batches_change_nothing(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    special = special_tokens(tokenizer)
    whole = write_rows(tmp_path / "a", "train", DOCUMENTS, tokenizer, special, 32)
    monkeypatch.setattr("nystromformer.data.rows._BATCH_CHARACTERS", 100)
    assert write_rows(tmp_path / "b", "train", DOCUMENTS, tokenizer, special, 32) == whole


def test_text_that_fills_no_row_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"validation split has \d+ tokens, which fill no row of 4096"):
        write_rows(tmp_path, "validation", DOCUMENTS[:3], tokenizer, special_tokens(tokenizer), 4096)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("name", ["train.tokens.bin", "train.splits.bin"])
def test_a_full_disk_leaves_no_rows(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    (tmp_path / f"{name}.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match=rf"{name}: no space left"):
        write_rows(tmp_path, "train", DOCUMENTS, tokenizer, special_tokens(tokenizer), 32)
    assert not (tmp_path / f"{name}.tmp").is_symlink()
    assert "train.tokens.bin" not in os.listdir(tmp_path)


@pytest.mark.parametrize(("values", "dtype"), [(65536, "uint16"), (65537, "int32"), (50265, "uint16")])
def test_storage_dtype(values: int, dtype: str) -> None:
    assert storage_dtype(values) == dtype
