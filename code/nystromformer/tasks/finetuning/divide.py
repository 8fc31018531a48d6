"""Labelled texts divided into those to train on and those to choose by."""

from __future__ import annotations

import numpy as np

from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.examples import Texts, select

_VALIDATION_STREAM = 30


def split_validation(train: Texts, share: float, seed: int) -> tuple[Texts, Texts]:
    """Divide labelled texts into training and validation, with the same share of every label (at least one text).

    Which texts go where is a pure function of the labels, the share and the seed; both parts keep the texts' order.

    Raises:
        UserError: the share is not between 0 and 1, or no label has two texts.
    """
    if not 0 < share < 1:
        raise UserError(f"--validation: expected a share between 0 and 1, such as 0.1, found {share:g}")
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
