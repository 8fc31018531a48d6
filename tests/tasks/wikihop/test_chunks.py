"""How WikiHop's instances are cut into rows: what holds for any sizes, read back from the rows themselves."""

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nystromformer.errors import UserError
from nystromformer.tasks.wikihop.chunks import Chunk, ChunkRow, InstanceTokens, Markers, cut, row_of

MARKERS = Markers(bos=0, pad=1, eos=2, question=3, end_question=4, answer=5, end_answer=6)
FIRST_TOKEN = 10

sizes = st.tuples(
    st.integers(0, 12),
    st.lists(st.integers(0, 9), min_size=1, max_size=14),
    st.lists(st.integers(0, 50), max_size=9),
    st.integers(1, 90),
)


def instance(question: int, candidates: list[int], supports: list[int]) -> InstanceTokens:
    """Tokens that are all different."""
    counts = [question, *candidates, *supports]
    texts = np.split(np.arange(sum(counts), dtype=np.int32) + FIRST_TOKEN, np.cumsum(counts)[:-1])
    return InstanceTokens(texts[0], texts[1 : len(candidates) + 1], texts[len(candidates) + 1 :])


def parsed(row: ChunkRow) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Question, candidates and pieces of supports of a row, by its special tokens alone."""
    tokens = row.tokens.tolist()
    assert tokens[:2] == [MARKERS.bos, MARKERS.question]
    at = tokens.index(MARKERS.end_question)
    question, rest = tokens[2:at], tokens[at + 1 :]
    candidates = []
    while rest[0] == MARKERS.answer:
        end = rest.index(MARKERS.end_answer)
        candidates.append(rest[1:end])
        rest = rest[end + 1 :]
    assert rest[0] == rest[-1] == MARKERS.eos
    pieces = [list(run) for is_text, run in groupby(rest, lambda token: token != MARKERS.eos) if is_text]
    assert len(rest) == 1 + sum(len(piece) + 1 for piece in pieces), "one </s> before each piece and one at the end"
    texts = [*question, *(t for c in candidates for t in c), *(t for p in pieces for t in p)]
    assert all(token >= FIRST_TOKEN for token in texts), "no special token elsewhere"
    return question, candidates, pieces


def by_group(chunks: list[Chunk]) -> list[list[Chunk]]:
    return [list(run) for _, run in groupby(chunks, lambda chunk: chunk.candidates)]


def prefix_size(question: int, candidates: list[int]) -> int:
    return len(["<s>", "<question>", "</question>"]) + question + sum(size + 2 for size in candidates)


@settings(max_examples=400)
@given(sizes)
@example((1, [1], [], 7))
@example((1, [1], [1], 9))
@example((1, [1], [0, 0], 7))
@example((0, [0], [100], 8))
def test_rows(made: tuple[int, list[int], list[int], int]) -> None:
    question, candidates, supports, length = made
    least = 3 if any(supports) else 1
    try:
        chunks = cut("WH_7", *made)
    except UserError:
        assert prefix_size(question, [max(candidates)]) + least > length, "refused only where there is no room"
        return
    tokens = instance(question, candidates, supports)
    assert cut("WH_7", *made) == chunks
    groups = by_group(chunks)
    met = [number for group in groups for number in group[0].candidates]
    assert met == list(range(len(candidates))), "each candidate in one group, in order"
    counts = [len(group[0].candidates) for group in groups]
    assert max(counts) - min(counts) <= 1
    for group in groups:
        packed: list[list[int]] = []
        for chunk in group:
            row = row_of(chunk, tokens, MARKERS)
            assert len(row.tokens) == chunk.length <= length
            asked, answers, pieces = parsed(row)
            assert asked == tokens.question.tolist()
            assert answers == [tokens.candidates[number].tolist() for number in chunk.candidates]
            assert np.flatnonzero(row.tokens == MARKERS.answer).tolist() == row.positions.tolist()
            assert row.prefix == prefix_size(question, [candidates[number] for number in chunk.candidates])
            assert row.tokens[row.prefix] == MARKERS.eos
            packed += pieces
        all_tokens = np.concatenate([*tokens.supports, np.empty(0, np.int32)]).tolist()
        assert [token for piece in packed for token in piece] == all_tokens, "each group has all supports, in order"


@settings(max_examples=400)
@given(sizes)
def test_greedy(made: tuple[int, list[int], list[int], int]) -> None:
    supports, length = made[2:]
    try:
        groups = by_group(cut("WH_7", *made))
    except UserError:
        return
    for group in groups:
        room = length - (group[0].length - 1 - sum(1 + p.end - p.begin for p in group[0].pieces))
        for chunk in group:
            for piece in chunk.pieces:
                whole = (piece.begin, piece.end) == (0, supports[piece.support])
                assert whole or supports[piece.support] + 2 > room, "what fits whole in a row is not divided"
        for before, after in pairwise(group):
            first = after.pieces[0]
            left = length - before.length
            if supports[first.support] + 2 <= room:
                assert supports[first.support] + 1 > left, "begins a row only where it did not fit the one before"
            else:
                assert left < 2, "an overlong one fills the row before"


@pytest.mark.parametrize(("question", "candidates", "supports"), [(40, [1], [5]), (5, [1, 30], [5]), (28, [1], [])])
def test_no_room(question: int, candidates: list[int], supports: list[int]) -> None:
    widest = max(candidates)
    with pytest.raises(
        UserError, match=rf"^WH_7: its question of {question} tokens and its longest candidate of {widest}.*--length"
    ) as error:
        cut("WH_7", question, candidates, supports, 32)
    enough = int(str(error.value).rsplit(" ", 1)[1])
    assert cut("WH_7", question, candidates, supports, enough)
    with pytest.raises(UserError, match="no room"):
        cut("WH_7", question, candidates, supports, enough - 1)
