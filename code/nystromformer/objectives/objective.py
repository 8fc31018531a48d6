"""What all objectives have in common.

A game: the model and an objective's own primal variables descend, its dual ones, multipliers, ascend. Each variable has
a range, into which it is put back after every step. Given the variables, an objective is a mean over examples (all but
the pairwise one): micro-batches and processes add up to the same loss and gradients as one batch. Shapes: ... any.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Objective(nn.Module, ABC):
    """A loss of logits and labels, 0 or 1, that is no sum over examples.

    Args:
        positive_share: of the labels of all data, which those of a batch only estimate.

    Raises:
        ValueError: a share that is not between 0 and 1.
    """

    def __init__(self, positive_share: float) -> None:
        super().__init__()
        if not 0 < positive_share < 1:
            raise ValueError(f"expected a share of positives between 0 and 1, found {positive_share}")
        self.positive_share = positive_share
        self._duals: list[str] = []
        self._ranges: dict[str, tuple[float, float]] = {}

    def add_primal(self, name: str, value: Tensor, low: float = -math.inf, high: float = math.inf) -> None:
        """A variable that descends, within a range."""
        self.register_parameter(name, nn.Parameter(value))
        self._ranges[name] = (low, high)

    def add_dual(self, name: str, value: Tensor, low: float = 0.0, high: float = math.inf) -> None:
        """A variable that ascends, within a range."""
        self.add_primal(name, value, low, high)
        self._duals.append(name)

    def dual_parameters(self) -> list[nn.Parameter]:
        """Those that ascend: for an optimiser with `maximize=True` and no weight decay."""
        return [self.get_parameter(name) for name in self._duals]

    def primal_parameters(self) -> list[nn.Parameter]:
        """Those that descend with the model's weights."""
        return [self.get_parameter(name) for name in self._ranges if name not in self._duals]

    @torch.no_grad()
    def project(self) -> None:
        """Put each variable back into its range."""
        for name, (low, high) in self._ranges.items():
            # By its data: several batches may be computed before the gradients of the first one are.
            self.get_parameter(name).data.clamp_(low, high)

    def forward(
        self, logits: Tensor, labels: Tensor, mask: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar in float32.

        Args:
            logits: of a 1, (...).
            labels: 0 or 1, (...).
            mask: bool, True for what counts; None: all.
            weight: of each, not negative; None: 1.

        Raises:
            ValueError: shapes that differ.
        """
        if logits.shape != labels.shape:
            raise ValueError(f"expected labels of the logits' shape {tuple(logits.shape)}, found {tuple(labels.shape)}")
        self.project()
        weights = torch.ones_like(logits, dtype=torch.float32) if weight is None else weight.float()
        if mask is not None:
            weights = weights * mask
            logits = torch.where(mask, logits, 0.0)
        return self.loss(logits.float(), labels.float(), weights)

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Of float32 tensors of one shape."""
        return (self.each(logits, labels) * weights).sum() / weights.sum().clamp(min=1e-12)

    @abstractmethod
    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What each example adds, whose mean is the loss; (...)."""


@torch.no_grad()
def ascend(parameters: Iterable[nn.Parameter], rate: float) -> None:
    """A step of plain gradient ascent, after which the gradients are gone."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=rate)
            parameter.grad = None


def bounds_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What each example adds to L+ and to L-, whose means are these as shares of all examples: cross-entropy to the
    base of 2, which is above 1 where an example is on the wrong side of 0, and never below 0.
    """
    errors = F.softplus(torch.where(labels > 0, -logits, logits)) / math.log(2)
    return errors * labels, errors * (1 - labels)


def counts_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What each example adds to the soft counts of true and of false positives."""
    chances = logits.sigmoid()
    return chances * labels, chances * (1 - labels)


def check_target(target: float) -> float:
    """The same, where it is between 0 and 1."""
    if not 0 < target < 1:
        raise ValueError(f"expected a target between 0 and 1, found {target}")
    return target
