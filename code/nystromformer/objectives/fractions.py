"""Fractions of counts, reparameterised and dualised in part, with projections onto intervals.

Derived here, in the spirit of Ravi et al. (AAAI 2020, arXiv 1909.12398), whose abstract alone was at hand; none of its
results is claimed. A metric is a fraction of soft counts, A(z) / B(z), of the model's probabilities z. With the scale
r = 1 / B (Charnes and Cooper 1962) it is r A(z) with the constraint r B(z) = 1, which a multiplier takes over: min over
r and the model, max over the multiplier m of -r A(z) + m (r B(z) - 1). At the saddle r = 1 / B and m = A / B, the
metric, and the gradient of the model's weights is that of the metric itself. r lives in the interval between 1 over the
largest and 1 over the smallest B, m in that between 0 and 1, so that a projection is a clamp. The variable is log r,
whose steps suit any share of positives. Counts are shares of all examples; p is the share of positives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from nystromformer.objectives.objective import Objective, check_target, counts_of


class FBeta(Objective):
    """Minus F-beta: A = (1 + b²) tp, B = b² p + tp + fp, between b² p and b² p + 1."""

    def __init__(self, positive_share: float, beta: float = 1.0) -> None:
        super().__init__(positive_share)
        if not beta > 0:
            raise ValueError(f"expected beta above 0, found {beta}")
        self.beta = beta
        least = beta**2 * positive_share
        _add_fraction(self, least, least + 1, start=least + positive_share)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        found, wrong = counts_of(logits, labels)
        squared = self.beta**2
        return _game(self, (1 + squared) * found, squared * self.positive_share + found + wrong)


class PrecisionAtRecallFraction(Objective):
    """Minus precision, tp / (tp + fp), with a second multiplier for tp >= target p; B is between target p and 1."""

    of_recall: nn.Parameter

    def __init__(self, target: float, positive_share: float) -> None:
        super().__init__(positive_share)
        self.target = check_target(target)
        _add_fraction(self, target * positive_share, 1.0, start=positive_share)
        self.add_dual("of_recall", torch.ones(()))

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        found, wrong = counts_of(logits, labels)
        # By how much the soft recall is below the target: linear in the soft share of true positives.
        violation = self.target - found / self.positive_share
        return _game(self, found, found + wrong) + self.of_recall * violation


class AurocSquares(Objective):
    """The mean over pairs of (1 - (z+ - z-))², by the classes' means as variables of their own and one multiplier
    (Ying, Wen and Lyu 2016): sums over examples alone, no pairs.
    """

    of_ones: nn.Parameter
    of_zeros: nn.Parameter
    multiplier: nn.Parameter

    def __init__(self, positive_share: float) -> None:
        super().__init__(positive_share)
        self.add_primal("of_ones", torch.full((), 0.5), 0.0, 1.0)
        self.add_primal("of_zeros", torch.full((), 0.5), 0.0, 1.0)
        self.add_dual("multiplier", torch.zeros(()), -1.0, 1.0)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        chances = logits.sigmoid()
        ones, zeros = labels / self.positive_share, (1 - labels) / (1 - self.positive_share)
        spread = (chances - self.of_ones) ** 2 * ones + (chances - self.of_zeros) ** 2 * zeros
        apart = chances * (zeros - ones)
        # The pairs' mean is var+ + var- + (1 + apart)², and apart² is the most that 2 m apart - m² can be.
        return spread + 1 + 2 * (1 + self.multiplier) * apart - self.multiplier**2


def _add_fraction(objective: Objective, least: float, most: float, start: float) -> None:
    """The scale and the multiplier of a fraction whose lower part is between two bounds, and begins with a third."""
    objective.add_primal("log_scale", torch.tensor(-math.log(start)), -math.log(most), -math.log(least))
    objective.add_dual("multiplier", torch.zeros(()), 0.0, 1.0)


def _game(objective: Objective, upper: Tensor, lower: Tensor) -> Tensor:
    scale, multiplier = objective.get_parameter("log_scale").exp(), objective.get_parameter("multiplier")
    return -scale * upper + multiplier * (scale * lower - 1)
