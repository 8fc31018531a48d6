"""Optimizer and schedule."""

from torch import nn
from torch.optim import AdamW

from nystromformer.training.settings import TrainingSettings


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
