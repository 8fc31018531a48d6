"""Probabilities that fit how often the model is right: one temperature, chosen on validation rows (Guo et al., "On
calibration of modern neural networks", 2017).

Shapes: n rows, C outputs.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from nystromformer.tasks.finetuning.target import Classes, Questions, Target

LEAST_ROWS = 200
"""Of fewer validation rows no temperature is chosen: chance would decide it."""
COLDEST, HOTTEST = 0.05, 20.0
_ROUNDS = 40
"""Of a golden-section search, which leave 1e-8 of the range."""
_STEP = 1e-2
"""Of log T, over which the loss' curvature is taken."""


def temperature_of(target: Target, scores_NC: Tensor, labels: Tensor) -> float | None:
    """What scores are to be divided by; None of a target without probabilities, of fewer than `LEAST_ROWS` rows, and
    where chance alone would give as much.

    log T is where the rows are most probable, times 1 - s² / (log T)², where s is its standard error. The labels are
    smoothed by one part in n + 1, so that rows that are all right do not make the model certain.
    """
    if not isinstance(target, Classes | Questions) or len(labels) < LEAST_ROWS:
        return None
    scores_NC, smoothing = scores_NC.double(), 1 / (len(scores_NC) + 1)
    answers_NC = None
    if isinstance(target, Questions):
        answers_NC = target.answers(labels).double() * (1 - smoothing) + smoothing / 2

    def loss(log_temperature: float) -> float:
        scaled_NC = scores_NC / math.exp(log_temperature)
        if answers_NC is None:
            return float(F.cross_entropy(scaled_NC, labels, label_smoothing=smoothing, reduction="sum"))
        return float(F.binary_cross_entropy_with_logits(scaled_NC, answers_NC, reduction="sum"))

    # The loss is convex in 1 / T, and so has one minimum in log T, too.
    low, high, golden = math.log(COLDEST), math.log(HOTTEST), (math.sqrt(5) - 1) / 2
    for _ in range(_ROUNDS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    best = (low + high) / 2
    curvature = (loss(best - _STEP) - 2 * loss(best) + loss(best + _STEP)) / _STEP**2
    share = 1 - 1 / (curvature * best**2) if curvature > 0 and best else 0.0
    return math.exp(best * share) if share > 0 else None
