"""What is learned of documents: weighted classes, several labels at once, ordered classes.

Shapes: I examples of a batch, n rows, C classes; outputs as `Answer.outputs` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.tasks.documents.recipe import Answer
from nystromformer.tasks.finetuning.examples import Labels
from nystromformer.tasks.finetuning.target import Classes, Questions, Target, Value


def target_of(answer: Answer, weights: Sequence[float] | None = None) -> Target:
    """What is learned of an answer.

    Args:
        weights: of the classes; of several labels how much a text that has one counts beside one that has not. None:
            all alike.
    """
    if answer.kind == "value":
        return Value()
    given = None if weights is None else tuple(weights)
    if answer.kind == "several":
        return Several(len(answer.names), given)
    if answer.kind == "ordered":
        return Ordered(len(answer.names), given)
    return Classes(len(answer.names)) if given is None else WeightedClasses(len(answer.names), given)


@dataclass(frozen=True)
class WeightedClasses(Classes):
    """One of a few classes, by cross-entropy times the weight of the right one."""

    weights: tuple[float, ...] = ()

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        weights_C = torch.tensor(self.weights, dtype=scores_IC.dtype, device=scores_IC.device)
        return F.cross_entropy(scores_IC, labels_I, reduction="none") * weights_C[labels_I]


@dataclass(frozen=True)
class Several(Questions):
    """Any number of labels of each text: the sum over the labels."""

    constant = "each label's majority"

    def answers(self, labels_IC: Tensor) -> Tensor:
        return labels_IC.float()

    def losses(self, scores_IC: Tensor, labels_IC: Tensor) -> Tensor:
        weights_C = None
        if self.weights is not None:
            weights_C = torch.tensor(self.weights, dtype=scores_IC.dtype, device=scores_IC.device)
        losses_IC = F.binary_cross_entropy_with_logits(scores_IC, labels_IC, reduction="none", pos_weight=weights_C)
        return losses_IC.sum(1)


@dataclass(frozen=True)
class Ordered(Questions):
    """One of some ordered classes: for each but the last, whether it is a higher one (Frank and Hall, 2001)."""

    constant = "median class"

    @property
    def outputs(self) -> int:
        return self.count - 1

    def answers(self, labels_I: Tensor) -> Tensor:
        return (labels_I[:, None] > torch.arange(self.outputs, device=labels_I.device)).float()

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        higher_IC = self.answers(labels_I).to(scores_IC.dtype)
        losses_I = F.binary_cross_entropy_with_logits(scores_IC, higher_IC, reduction="none").sum(1)
        if self.weights is None:
            return losses_I
        return losses_I * torch.tensor(self.weights, dtype=scores_IC.dtype, device=scores_IC.device)[labels_I]


def probabilities(answer: Answer, scores: Tensor) -> Tensor:
    """Of each class or label, (n, C) float32; of several labels the sum is not 1. Not for values.

    Of ordered classes, the chances of higher ones are made to fall first: each is at most the one before.
    """
    scores = scores.float()
    if answer.kind == "classes":
        return scores.softmax(1)
    if answer.kind == "several":
        return scores.sigmoid()
    higher = scores.sigmoid().cummin(1).values
    return _between(higher)


def class_scores(answer: Answer, scores: Tensor) -> Tensor:
    """What grows with the chance of each class or label and has a gradient everywhere, (n, C); values (n, 1).

    Of ordered classes, their chances, which are not made to fall here as in `probabilities`.
    """
    if answer.kind != "ordered":
        return scores
    return _between(scores.sigmoid())


def _between(higher: Tensor) -> Tensor:
    """Chances of ordered classes (n, C) from those of higher ones than each but the last."""
    ones, zeros = higher.new_ones(len(higher), 1), higher.new_zeros(len(higher), 1)
    return torch.cat([ones, higher], 1) - torch.cat([higher, zeros], 1)


def predicted(answer: Answer, scores: Tensor) -> Tensor:
    """Class numbers (n,), of ordered classes the median; for several labels 0 or 1 of each, (n, C); values (n,)."""
    if answer.kind == "value":
        return scores[:, 0].double() * answer.deviation + answer.mean
    if answer.kind == "several":
        return (scores > 0).long()
    if answer.kind == "ordered":
        return (scores.float().cummin(1).values > 0).sum(1)
    return scores.argmax(1)


def names_of(answer: Answer, chosen: Tensor) -> list[Any]:
    """Of each row the name of its class, the names of its labels, or its value.

    Args:
        chosen: as `predicted` gives it.
    """
    if answer.kind == "value":
        return chosen.tolist()
    if answer.kind == "several":
        return [[name for name, has in zip(answer.names, row, strict=True) if has] for row in chosen.tolist()]
    return [answer.names[number] for number in chosen.tolist()]


def as_text(label: Any, separator: str) -> str:
    """What `names_of` gives for a row, for files whose cells are text."""
    if isinstance(label, float):
        return f"{label:.7g}"  # as many digits as float32 has
    return label if isinstance(label, str) else separator.join(label)


def balanced_weights(answer: Answer, labels: Labels) -> list[float]:
    """Weights by which each class counts as much as the others, 1 in the mean over the rows; of several labels, by
    which those that have a label count as much as those that have not. A class without rows gets 1.
    """
    if answer.kind == "several":
        have = labels.sum(0)
        return [float((len(labels) - count) / count) if 0 < count < len(labels) else 1.0 for count in have]
    counts = np.bincount(labels, minlength=len(answer.names))
    present = int((counts > 0).sum())
    return [float(len(labels) / (present * count)) if count else 1.0 for count in counts]
