"""Cutting documents into rows: nothing is lost, labelled rows hold whole sentences, and how they are drawn."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nystromformer.data.preprocessing.packing import Packer, draw_head
from nystromformer.data.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(0, 1, 2, 3, 4)
FIRST_ID = 10
ODD = {SPECIAL.bos, SPECIAL.eos, SPECIAL.pad}

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
    packer = Packer(length, SPECIAL)
    parts = [packer.add(*document) for document in documents]
    rows = np.concatenate([np.empty((0, length), np.int32), *(rows for rows, _ in parts)])
    return rows, np.concatenate([np.empty(0, np.int32), *(splits for _, splits in parts)]), packer


def text_of(row: list[int]) -> list[int]:
    return [token for token in row if token not in ODD]


@settings(max_examples=100)
@given(SHAPES, st.integers(8, 40))
def test_every_token_is_in_one_row_and_rows_are_as_they_shall_be(shapes: list[list[int]], length: int) -> None:
    documents = make_documents(shapes)
    rows, splits, packer = pack(documents, length)
    begins = {int(tokens[index]) for tokens, indices in documents for index in indices}
    ends = {int(tokens[-1]) for tokens, _ in documents if len(tokens)} | {token - 1 for token in begins}
    last = {int(tokens[-1]) for tokens, _ in documents if len(tokens)}
    least = min(math.ceil(0.8 * length - 1e-9), length - 3)

    assert packer.counts == {
        "documents": sum(bool(lengths) for lengths in shapes),
        "tokens": sum(map(sum, shapes)),
        "rows": len(rows),
        "sentence_order_rows": np.count_nonzero(splits),
        "padding": (rows == SPECIAL.pad).sum(),
        "dropped_tokens": len(packer._left_T),
    }
    left = text_of(packer._left_T.tolist())
    everything = [token for row in rows.tolist() for token in text_of(row)] + left
    assert sorted(everything) == list(range(FIRST_ID, FIRST_ID + sum(map(sum, shapes))))
    assert len(packer._left_T) < length - 1

    for row, split in zip(rows.tolist(), splits.tolist(), strict=True):
        end = length - row.count(SPECIAL.pad)
        assert SPECIAL.pad not in row[:end]
        assert (row[0], row[end - 1]) == (SPECIAL.bos, SPECIAL.eos)
        text = text_of(row)
        assert end - 2 - bool(split) >= least
        if not split:
            continue
        assert row[:end] == [SPECIAL.bos, *text[: split - 2], SPECIAL.eos, *text[split - 2 :], SPECIAL.eos]
        assert text == list(range(text[0], text[0] + len(text))), "of one document, in order"
        assert {text[0], row[split]} <= begins
        assert text[-1] in ends
        assert 0.25 <= (split - 2) / len(text) <= 0.75
        if text[-1] not in last:
            following = next(n for n in range(text[-1] + 1, text[-1] + 30) if n in ends) - text[-1]
            assert len(text) + following > length - 3, "the next sentence does not fit"


@given(st.lists(st.integers(1, 9), min_size=2, max_size=30))
def test_a_sentence_opens_the_second_side_as_often_as_it_is_long(lengths: list[int]) -> None:
    ends = np.cumsum(lengths)
    size = int(ends[-1])
    begins = {int(end): int(length) for end, length in zip(ends[:-1], lengths[1:], strict=True)}
    near = {begin: length for begin, length in begins.items() if size <= 4 * begin <= 3 * size}
    total = sum(near.values())
    drawn = [draw_head(ends, (n + 0.5) / total) for n in range(total)] if near else [draw_head(ends, 0.5)]
    assert {head: drawn.count(head) for head in set(drawn)} == (near or {0: 1})


def test_a_row_without_a_sentence_end_near_its_own_is_full_and_has_no_label() -> None:
    rows, splits, _ = pack(make_documents([[10, 10, 60, 10, 10]]), 43)
    assert splits.tolist() == [0, 0]
    assert SPECIAL.pad not in rows[0]


def test_what_is_left_of_a_document_is_taken_from_both_ends() -> None:
    length, sentences = 43, [4] * 24  # two rows of 40 tokens, 16 are left
    rows, splits, _ = pack(make_documents([sentences] * 300), length)
    begins = [int(row[1] - FIRST_ID) % 96 for row, split in zip(rows, splits, strict=True) if split]
    first = np.bincount([begin for begin in begins if begin < 40], minlength=17)
    assert set(np.flatnonzero(first)) == {0, 4, 8, 12, 16}
    # 17 tokens are as likely each, and the last sentence has one of them
    assert (first[[0, 4, 8, 12]] > 300 * 4 / 17 - 35).all()
    assert 0 < first[16] < first[:16].max()


def test_pieces_are_packed_across_documents() -> None:
    rows, splits, packer = pack(make_documents([[10, 10], [10, 10]]), 43)
    assert rows[0].tolist() == [SPECIAL.bos, *range(10, 30), SPECIAL.eos, *range(30, 50), SPECIAL.eos]
    assert (splits.tolist(), packer.counts["dropped_tokens"]) == ([0], 0)


def test_a_separator_that_would_open_a_row_is_dropped() -> None:
    documents = make_documents([[20], [21], [20]])
    rows, _, packer = pack(documents, 43)
    assert rows[0].tolist() == [SPECIAL.bos, *range(10, 30), SPECIAL.eos, *range(30, 50), SPECIAL.eos]
    assert packer._left_T.tolist() == [50, SPECIAL.eos, *range(51, 71)]
    rows, _, packer = pack(make_documents([[20], [20], [20]]), 43)
    assert packer._left_T.tolist() == list(range(50, 70))
