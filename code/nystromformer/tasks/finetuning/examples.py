"""What a fine-tuning task hands over: the examples of a split, as text and as batches.

Shapes: B rows, N tokens.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.data.counter import permute
from nystromformer.errors import UserError

Ints = NDArray[np.int64]
Labels = NDArray[np.int64] | NDArray[np.float32]
_VALIDATION_STREAM = 30


@dataclass(frozen=True)
class Texts:
    """The rows of a split as text, in the order of their file.

    name: what messages call it, such as "MRPC train"; second: the other sentence of each row, None where rows have one;
    labels: class numbers (int64) or values (float32), None for a test split that has none; ids: what a row is called in
    a prediction file, None for its number.
    """

    name: str
    first: Sequence[str]
    second: Sequence[str] | None = None
    labels: Labels | None = None
    ids: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.first)


def select(texts: Texts, chosen: Ints, name: str | None = None) -> Texts:
    """Some rows of a split, in the given order."""
    numbers = chosen.tolist()
    return Texts(
        name or texts.name,
        [texts.first[number] for number in numbers],
        None if texts.second is None else [texts.second[number] for number in numbers],
        None if texts.labels is None else texts.labels[chosen],
        [str(number) if texts.ids is None else texts.ids[number] for number in numbers],
    )


def share_of(text: str) -> tuple[float, int]:
    """The share of the training rows to hold out and the seed by which they are drawn, of --validation: `0.1`, or
    `0.1,seed=3`.
    """
    found = re.fullmatch(r"(0?\.\d*[1-9]\d*)(?:,seed=(\d{1,18}))?", text, re.ASCII)
    if found is None:
        raise UserError(f"--validation {text}: expected a share between 0 and 1, such as 0.1 or 0.1,seed=3")
    return float(found[1]), int(found[2] or 0)


def split_validation(train: Texts, share: float, seed: int) -> tuple[Texts, Texts]:
    """Divide labelled texts into training and validation, with the same share of every label (at least one text).

    Which texts go where is a pure function of the labels, the share and the seed; both parts keep the texts' order.
    """
    assert train.labels is not None
    held_out = np.zeros(len(train), dtype=bool)
    for label in np.unique(train.labels):
        members = np.flatnonzero(train.labels == label)
        if len(members) > 1:
            count = min(max(round(share * len(members)), 1), len(members) - 1)
            held_out[members[permute(np.arange(count), len(members), seed, _VALIDATION_STREAM, int(label))]] = True
    if not held_out.any():
        raise UserError(f"--validation: {train.name} has too few texts to divide: {len(train)}")
    name = f"{train.name.removesuffix('train')}validation"
    return select(train, np.flatnonzero(~held_out)), select(train, np.flatnonzero(held_out), name)


class Examples(Protocol):
    """The examples of a split, tokenised. An example takes one row of a batch or, cut into chunks, several."""

    @property
    def name(self) -> str:
        """What messages call the split."""

    @property
    def lengths(self) -> Ints:
        """Tokens of each example's longest row."""

    @property
    def rows(self) -> Ints:
        """Rows that each example takes."""

    @property
    def tokens(self) -> Ints:
        """Valid tokens of each example, in all its rows."""

    @property
    def labels(self) -> Labels | None:
        """Of each example; None for test data."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of all that the examples are: tokens and labels."""

    def __len__(self) -> int: ...

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        """The examples of these numbers: at least `tokens_BN` (int64), `mask_BN` (bool, always) and, where the split
        has labels, `labels` (one for each example); padded to the longest row, or to `pad_to` tokens.
        """
        ...
