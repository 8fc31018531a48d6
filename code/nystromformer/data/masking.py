"""From stored rows to what a pretraining step sees: sentence swaps and masked tokens.

Shapes: B rows, N tokens of a row, K masked positions of a row.
"""

from dataclasses import astuple, dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nystromformer.data.counter import random_bits, random_uniform
from nystromformer.data.tokenizer import SpecialTokens

IGNORED_LABEL = -100
"""Label of what does not count towards a loss (PyTorch's default `ignore_index`)."""

BERT_REPLACE_PROBS = (0.8, 0.1)
"""Of the predicted tokens, the shares that [MASK] and random tokens stand for (Devlin et al. 2019)."""

_SWAP_STREAM, _CHOICE_STREAM, _KIND_STREAM, _TOKEN_STREAM = 2, 3, 4, 5

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MaskedRows:
    """A batch of the masked-language-model and sentence-order objectives."""

    tokens_BN: Ints
    types_BN: Ints
    """0 up to the end of the first side, 1 from there on; 0 for rows of one side."""
    positions_BK: Ints
    """Positions to predict, ascending; padded with 0, as many columns as the longest row can need."""
    labels_BK: Ints
    """The tokens that stood there; IGNORED_LABEL in the padding."""
    order_B: Ints
    """0: the sides are in order, 1: swapped, IGNORED_LABEL: the row has no sentence-order label."""


def prepare_rows(
    tokens_BN: Ints,
    splits_B: Ints,
    special: SpecialTokens,
    vocab_size: int,
    mask_prob: float,
    sentence_order: bool,
    key: tuple[int, ...],
    rows_B: Ints,
    replace_probs: tuple[float, float] = BERT_REPLACE_PROBS,
) -> MaskedRows:
    """Swap and mask rows; a pure function of its arguments.

    Args:
        tokens_BN, splits_B: stored rows, `<s> A </s> B </s>` where the split, which is B's first token, is positive.
        vocab_size: random replacements are drawn below it.
        mask_prob: share of a row's tokens that are predicted: exactly round(mask_prob · tokens), at least one.
        sentence_order: whether to swap half of the rows that have a split.
        key, rows_B: what the random numbers are a function of; a row's depend on no other row.
        replace_probs: shares of the predicted tokens that [MASK] and random tokens take the place of.
    """
    tokens = tokens_BN.astype(np.int64)
    splits = splits_B.astype(np.int64)
    order = np.full(len(tokens), IGNORED_LABEL, dtype=np.int64)
    if sentence_order:
        swapped = (random_bits(*key, _SWAP_STREAM, rows_B) & np.uint64(1)).astype(bool)
        order = np.where(splits > 0, swapped.astype(np.int64), IGNORED_LABEL)
        for row in np.flatnonzero(order == 1):
            splits[row] = _swap_sides(tokens[row], int(splits[row]), special)
    columns = np.arange(tokens.shape[1])
    types = ((splits[:, None] > 0) & (columns >= splits[:, None])).astype(np.int64)
    positions, labels = _mask(tokens, special, vocab_size, mask_prob, key, rows_B, replace_probs)
    return MaskedRows(tokens, types, positions, labels, order)


def count_predictions(tokens_BN: Ints, special: SpecialTokens, mask_prob: float) -> Ints:
    """How many positions of each row are predicted, (B,): what `prepare_rows` chooses, without choosing."""
    valid_B = (tokens_BN != special.pad).sum(1)
    wanted_B = np.maximum(1, (valid_B * mask_prob + 0.5).astype(np.int64))
    counts_B: Ints = np.minimum(wanted_B, _maskable(tokens_BN, special).sum(1))
    return counts_B


def _maskable(tokens_BN: Ints, special: SpecialTokens) -> NDArray[np.bool_]:
    """No special token is chosen, nor drawn as a random replacement."""
    return ~np.isin(tokens_BN, astuple(special))


def predictions_per_row(length: int, mask_prob: float) -> int:
    """K: how many positions of a full row are predicted, at least one."""
    return max(1, int(length * mask_prob + 0.5))


@lru_cache
def _ordinary_tokens(vocab_size: int, special: SpecialTokens) -> Ints:
    return np.setdiff1d(np.arange(vocab_size), astuple(special))


def _swap_sides(row: Ints, split: int, special: SpecialTokens) -> int:
    """`<s> A </s> B </s>` to `<s> B </s> A </s>` in place; returns the new split."""
    end = len(row) - 1 - int(np.argmax(row[::-1] == special.eos))
    first, second = row[1 : split - 1].copy(), row[split:end].copy()
    new_split = len(second) + 2
    row[1 : new_split - 1] = second
    row[new_split - 1] = special.eos
    row[new_split:end] = first
    return new_split


def _mask(
    tokens: Ints,
    special: SpecialTokens,
    vocab_size: int,
    mask_prob: float,
    key: tuple[int, ...],
    rows_B: Ints,
    replace_probs: tuple[float, float],
) -> tuple[Ints, Ints]:
    """Replace the chosen tokens in place: some by [MASK], some by a random token; the others stay."""
    length = tokens.shape[1]
    columns = predictions_per_row(length, mask_prob)
    maskable = _maskable(tokens, special)
    counts_B = count_predictions(tokens, special, mask_prob)
    # The tokens with the smallest random numbers are chosen: as many as wanted, each as likely as any other.
    priority = np.where(maskable, random_bits(*key, _CHOICE_STREAM, rows_B[:, None], np.arange(length)), ~np.uint64(0))
    chosen = np.argsort(priority, axis=1, kind="stable")[:, :columns]
    wanted = np.arange(columns) < counts_B[:, None]
    positions = np.sort(np.where(wanted, chosen, length), axis=1)
    positions = np.where(wanted, positions, 0)
    labels = np.where(wanted, np.take_along_axis(tokens, positions, 1), IGNORED_LABEL)

    kind = random_uniform(*key, _KIND_STREAM, rows_B[:, None], positions)
    ordinary = _ordinary_tokens(vocab_size, special)
    drawn = random_bits(*key, _TOKEN_STREAM, rows_B[:, None], positions) % np.uint64(len(ordinary))
    masked, random = replace_probs
    others = np.where(kind < masked + random, ordinary[drawn.astype(np.int64)], labels)
    replacement = np.where(kind < masked, special.mask, others)
    rows, slots = np.nonzero(wanted)
    tokens[rows, positions[rows, slots]] = replacement[rows, slots]
    return positions, labels
