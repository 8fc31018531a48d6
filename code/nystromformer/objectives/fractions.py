"""F-beta as a fraction of counts, reparameterised and dualised in part, with projections onto intervals.

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

from nystromformer.objectives.objective import Objective, counts_of


class FBeta(Objective):
    """Minus F-beta: A = (1 + b²) tp, B = b² p + tp + fp, between b² p and b² p + 1."""

    log_scale: nn.Parameter
    multiplier: nn.Parameter

    def __init__(self, positive_share: float, beta: float = 1.0) -> None:
        super().__init__(positive_share)
        if not beta > 0:
            raise ValueError(f"expected beta above 0, found {beta}")
        self.beta = beta
        least = beta**2 * positive_share
        start = torch.tensor(-math.log(least + positive_share))
        self.add_primal("log_scale", start, -math.log(least + 1), -math.log(least))
        self.add_dual("multiplier", torch.zeros(()), 0.0, 1.0)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        found, wrong = counts_of(logits, labels)
        squared, scale = self.beta**2, self.log_scale.exp()
        upper, lower = (1 + squared) * found, squared * self.positive_share + found + wrong
        return -scale * upper + self.multiplier * (scale * lower - 1)
