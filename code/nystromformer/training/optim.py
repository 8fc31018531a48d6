"""Optimizer and schedule, and what ends a run whose numbers are finite no more."""

import math
from collections.abc import Mapping

from torch import nn
from torch.optim import AdamW

from nystromformer.errors import UserError
from nystromformer.training.state import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """Fused AdamW; no weight decay on norms, biases and other vectors."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=True)


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """The rate of a step (from 0): linear warm-up to the peak, then linear decay towards zero at the end."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    remaining = settings.num_steps - settings.warmup_steps
    return settings.learning_rate * (settings.num_steps - step) / max(1, remaining)


_LEAST_LOSS_SCALE = 2.0**-10


class Diverged(UserError):
    """Loss or gradients are not finite: these settings come to no result."""


def check_finite(step: int, values: Mapping[str, float]) -> None:
    """Check a run's metrics after so many steps.

    Raises:
        Diverged: names those that are not finite.
    """
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken:
        raise Diverged(
            f"{', '.join(broken)} is not a finite number at step {step}: the run has diverged. "
            "Lower the learning rate, lengthen the warm-up or set max_grad_norm, and start again; the checkpoints "
            "written so far are kept."
        )


def check_loss_scale(step: int, scale: float) -> None:
    """A step of too large float16 gradients is left out and the scale halved; where that goes on, nothing is learned.

    Raises:
        Diverged: the scale has fallen too low.
    """
    if scale < _LEAST_LOSS_SCALE:
        raise Diverged(
            f"float16 gradients are not finite at step after step: the loss scale fell to {scale:.1e} at step "
            f"{step}. Lower the learning rate, lengthen the warm-up or set mixed_precision to bf16 "
            "or false, and start again; the checkpoints written so far are kept."
        )
