"""What is learned beside masked language modelling: for each objective, the labels of a batch and how many there are.

An objective's head is in `model.build.CLASS_HEADS`, under the same name as here and in config.json's `objectives`.
"""

from collections.abc import Callable
from typing import Protocol

from nystromformer.data.dataset import Dataset
from nystromformer.data.masking import Ints, MaskedRows


class Objective(Protocol):
    """Classes of rows, or of masked positions, that a head learns to tell apart."""

    def labels(self, rows: MaskedRows) -> Ints:
        """Classes, (B,) of rows or (B, K) of positions, as the head says; IGNORED_LABEL where there is none.

        A pure function of the rows, whose tokens are masked already.
        """

    def count(self, rows: int, predictions: int) -> float:
        """What the losses of a global batch are divided by: its number of labels, or the number that batches have on
        average. Above 0.

        Args:
            rows: of the global batch, of which this process may prepare a part.
            predictions: its masked positions.
        """


class SentenceOrder:
    """Whether the two sides of a row are in order (Lan et al. 2020); rows of one side have no label."""

    def __init__(self, dataset: Dataset) -> None:
        self.labelled_share = dataset.manifest.sentence_order_share("train")

    def labels(self, rows: MaskedRows) -> Ints:
        return rows.order_B

    def count(self, rows: int, predictions: int) -> float:
        # The number that a batch has on average, so that each labelled row weighs the same in every step.
        return rows * self.labelled_share or 1.0


OBJECTIVES: dict[str, Callable[[Dataset], Objective]] = {
    "sop": SentenceOrder,
}
"""By the objective's name in config.json."""
