"""Objectives beside masked tokens: their name, labels and head belong together."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from small import small_config

from nystromformer.config.schema import ObjectiveName
from nystromformer.data.dataset import open_dataset
from nystromformer.data.masking import Ints, MaskedRows, prepare_rows
from nystromformer.model import PretrainingModel
from nystromformer.model.build import CLASS_HEADS
from nystromformer.tasks.pretraining.objectives import OBJECTIVES, Objective, SentenceOrder, checked_labels


def test_config_labels_and_heads_know_the_same_names() -> None:
    assert set(get_args(ObjectiveName)) == {"mlm", *OBJECTIVES} == {"mlm", *CLASS_HEADS}


def test_an_objective_without_a_head_is_no_model() -> None:
    with pytest.raises(ValueError, match="no head for word_start: CLASS_HEADS has sop"):
        PretrainingModel(small_config().model, ("mlm", "word_start"))


class Wrong:
    def __init__(self, labels: Ints) -> None:
        self.given = labels

    def labels(self, rows: MaskedRows) -> Ints:
        return self.given

    def count(self, rows: int, predictions: int) -> float:
        return rows


def test_labels_that_the_head_does_not_expect(dataset_folder: Path) -> None:
    dataset, numbers = open_dataset(dataset_folder), np.arange(4)
    tokens, splits = np.asarray(dataset.train.tokens[numbers]), np.asarray(dataset.train.splits[numbers])
    rows = prepare_rows(tokens, splits, dataset.special, dataset.vocab_size, 0.15, True, (1,), numbers)
    right: Objective = SentenceOrder(dataset)
    assert np.array_equal(checked_labels("sop", right, rows), rows.order_B)
    for labels in (rows.labels_BK, rows.order_B[:-1], np.array([0, 1, 2, 0])):
        with pytest.raises(
            ValueError, match=r"sop: expected labels of shape \(4,\) below 2, .* classes of rows; found"
        ):
            checked_labels("sop", Wrong(labels), rows)
