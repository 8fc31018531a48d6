import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.data.masking import IGNORED_LABEL, MaskedRows, predictions_per_row, prepare_rows
from nystromformer.data.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(bos=0, pad=1, eos=2, unk=3, mask=4)
VOCABULARY = 50


def rows(count: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Full rows, half of them with two sides."""
    randomness = np.random.default_rng(seed)
    tokens = randomness.integers(5, VOCABULARY, (count, length))
    tokens[:, 0], tokens[:, -1] = SPECIAL.bos, SPECIAL.eos
    splits = np.where(np.arange(count) % 2 == 0, randomness.integers(3, length - 2, count), 0)
    for row in np.flatnonzero(splits):
        tokens[row, splits[row] - 1] = SPECIAL.eos
    return tokens, splits


def prepare(
    tokens: np.ndarray, splits: np.ndarray, step: int = 0, ids: np.ndarray | None = None, sop: bool = True
) -> MaskedRows:
    ids = np.arange(len(tokens)) if ids is None else ids
    return prepare_rows(tokens, splits, SPECIAL, VOCABULARY, 0.15, sop, (1, step), ids)


def unmasked(prepared: MaskedRows) -> np.ndarray:
    """The rows with the labels put back."""
    tokens = prepared.tokens_BN.copy()
    asked = prepared.labels_BK != IGNORED_LABEL
    where = np.nonzero(asked)[0]
    tokens[where, prepared.positions_BK[asked]] = prepared.labels_BK[asked]
    return tokens


@given(count=st.integers(1, 6), length=st.integers(8, 80), seed=st.integers(0, 99))
def test_a_fixed_number_of_ordinary_tokens_is_predicted(count: int, length: int, seed: int) -> None:
    tokens, splits = rows(count, length, seed)
    prepared = prepare(tokens, splits)
    assert prepared.positions_BK.shape == (count, predictions_per_row(length, 0.15))
    asked = prepared.labels_BK != IGNORED_LABEL
    assert (asked.sum(1) == predictions_per_row(length, 0.15)).all()
    assert (prepared.labels_BK[asked] >= 5).all(), "no special token is predicted"
    for positions, wanted in zip(prepared.positions_BK, asked, strict=True):
        assert (np.diff(positions[wanted]) > 0).all()
    assert np.isin(prepared.tokens_BN[np.isin(unmasked(prepared), (0, 2))], (0, 2)).all()


def test_without_sentence_order_the_rows_come_back() -> None:
    tokens, splits = rows(20, 40)
    prepared = prepare(tokens, splits, sop=False)
    assert np.array_equal(unmasked(prepared), tokens)
    assert (prepared.order_B == IGNORED_LABEL).all()


def test_shares_of_mask_random_and_kept() -> None:
    tokens, splits = rows(400, 100)
    prepared = prepare(tokens, splits)
    replaced = np.take_along_axis(prepared.tokens_BN, prepared.positions_BK, 1)
    masked = (replaced == SPECIAL.mask).mean()
    kept = (replaced == prepared.labels_BK).mean()
    assert abs(masked - 0.8) < 0.02
    assert abs(kept - 0.1 - 0.1 / (VOCABULARY - 5)) < 0.02
    assert not np.isin(replaced[replaced != SPECIAL.mask], (0, 1, 2, 3)).any()


def test_positions_are_uniform_over_the_ordinary_tokens() -> None:
    tokens, splits = rows(3000, 24)
    splits[:] = 0
    tokens[:, 1:-1] = np.clip(tokens[:, 1:-1], 5, None)
    counts = np.bincount(prepare(tokens, splits).positions_BK.ravel(), minlength=24)
    assert counts[0] == counts[23] == 0
    expected = 3000 * predictions_per_row(24, 0.15) / 22
    assert np.abs(counts[1:23] - expected).max() < 5 * expected**0.5


def test_swapped_sides_trade_places_and_types_follow() -> None:
    tokens, splits = rows(200, 30)
    prepared = prepare(tokens, splits)
    restored = unmasked(prepared)
    swapped = prepared.order_B == 1
    assert 30 < swapped.sum() < 70
    assert (prepared.order_B[splits == 0] == IGNORED_LABEL).all()
    for row in range(200):
        split = splits[row]
        first, second = tokens[row, 1 : split - 1], tokens[row, split:-1]
        if prepared.order_B[row] == IGNORED_LABEL:
            assert np.array_equal(restored[row], tokens[row])
            assert not prepared.types_BN[row].any()
            continue
        if swapped[row]:
            first, second = second, first
        expected = [SPECIAL.bos, *first, SPECIAL.eos, *second, SPECIAL.eos]
        assert restored[row].tolist() == expected
        assert prepared.types_BN[row].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_a_row_depends_on_its_key_alone() -> None:
    tokens, splits = rows(10, 40)
    whole = prepare(tokens, splits)
    part = prepare(tokens[6:8], splits[6:8], ids=np.array([6, 7]))
    assert np.array_equal(whole.tokens_BN[6:8], part.tokens_BN)
    assert not np.array_equal(whole.tokens_BN, prepare(tokens, splits, step=1).tokens_BN)


@pytest.mark.parametrize("valid", [2, 3, 10])
def test_short_rows_are_padded_with_ignored_labels(valid: int) -> None:
    tokens = np.full((1, 40), SPECIAL.pad)
    tokens[0, :valid] = [SPECIAL.bos, *range(5, 3 + valid), SPECIAL.eos]
    prepared = prepare(tokens, np.array([0]))
    asked = prepared.labels_BK[0] != IGNORED_LABEL
    assert asked.sum() == min(max(1, int(0.15 * valid + 0.5)), valid - 2)
    assert (prepared.positions_BK[0][asked] < valid - 1).all()
