"""Eban et al., "Scalable learning of non-decomposable objectives" (AISTATS 2017): bounds and Lagrange multipliers.

L+ and L- are a surrogate's sums over positives and negatives, each example's above 1 where it is on the wrong side of
the threshold, so that true positives are at least P - L+ and false positives at most L-. Everything is a share of all
examples: p = P / N. A constraint that these bounds keep is kept by the counts themselves.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.objectives.objective import Objective, bounds_of, check_target

ANCHORS = 20
"""Of average precision, as in the paper."""


class _WithTarget(Objective):
    """With one constraint, and its multiplier of what breaks it, as a share of all examples."""

    multiplier: nn.Parameter

    def __init__(self, target: float, positive_share: float) -> None:
        super().__init__(positive_share)
        self.target = check_target(target)
        self.add_dual("multiplier", torch.ones(()))


class PrecisionAtRecall(_WithTarget):
    """The highest precision with a recall of at least `target`: min L- with P - L+ >= target P."""

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        missed, wrong = bounds_of(logits, labels)
        return wrong + self.multiplier * (missed - (1 - self.target) * self.positive_share)


class RecallAtPrecision(_WithTarget):
    """The highest recall with a precision of at least `target`.

    Precision is at least a where (1 - a) tp >= a fp, which (1 - a)(P - L+) >= a L- implies: the Lagrangian of min L+ is
    (1 + λ(1 - a)) L+ + λ a L- - λ(1 - a) p.
    """

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        missed, wrong = bounds_of(logits, labels)
        broken = self.target * wrong + (1 - self.target) * (missed - self.positive_share)
        return missed + self.multiplier * broken


class AveragePrecision(Objective):
    """The area below precision over recall: a Riemann sum of recalls at precisions between p and 1, each with a
    threshold and a multiplier of its own.
    """

    targets_A: Tensor
    thresholds_A: nn.Parameter
    multipliers_A: nn.Parameter

    def __init__(self, positive_share: float, anchors: int = ANCHORS) -> None:
        super().__init__(positive_share)
        steps = torch.arange(1, anchors + 1) / (anchors + 1)
        self.register_buffer("targets_A", positive_share + (1 - positive_share) * steps, persistent=False)
        self.add_primal("thresholds_A", torch.zeros(anchors))
        self.add_dual("multipliers_A", torch.ones(anchors))

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        missed, wrong = bounds_of(logits[..., None] - self.thresholds_A, labels[..., None])
        broken = self.targets_A * wrong + (1 - self.targets_A) * (missed - self.positive_share)
        return (missed + self.multipliers_A * broken).mean(-1)


class Auroc(Objective):
    """One minus AUROC, bounded by the surrogate of the difference of each pair of a batch; no multiplier."""

    def loss(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits, labels, weights = (each.flatten() for each in (logits, labels, weights))
        pairs = F.softplus(logits[None, :] - logits[:, None]) / torch.log(logits.new_tensor(2.0))
        of_pairs = (weights * labels)[:, None] * (weights * (1 - labels))[None, :]
        return (pairs * of_pairs).sum() / of_pairs.sum().clamp(min=1e-12)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The same for every example: it is a mean over pairs."""
        return self.loss(logits, labels, torch.ones_like(logits)).expand(logits.shape)
