"""What is learned beside masked language modelling: for each objective, the labels of a batch and how many there are.

An objective's head is in `model.build.CLASS_HEADS`, under the same name as here and in config.json's `objectives`.
"""

from collections.abc import Callable
from typing import Protocol

from nystromformer.data.dataset import Dataset
from nystromformer.data.masking import Ints, MaskedRows
from nystromformer.model.build import CLASS_HEADS


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


def checked_labels(name: str, objective: Objective, rows: MaskedRows) -> Ints:
    """An objective's labels of some rows.

    Raises:
        ValueError: they are not what its head expects.
    """
    labels, head = objective.labels(rows), CLASS_HEADS[name]
    expected = rows.positions_BK.shape[: 1 if head.of == "rows" else 2]
    if labels.shape != expected or labels.max(initial=0) >= head.classes:
        raise ValueError(
            f"{name}: expected labels of shape {expected} below {head.classes}, as its head has classes of {head.of}; "
            f"found shape {labels.shape} and labels up to {labels.max(initial=0)}"
        )
    return labels
