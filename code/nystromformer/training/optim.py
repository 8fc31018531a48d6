"""Optimizers and schedules, and what ends a run whose numbers are finite no more."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from nystromformer.errors import UserError
from nystromformer.training.state import TrainingSettings


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> Optimizer:
    """Fused AdamW, or StableAdamW; no weight decay on norms, biases and other vectors.

    Variables of a model's `objective` have a rate of their own (`RATE_OF_VARIABLES` at the peak), and its
    `dual_parameters` ascend.
    """
    objective: Any = getattr(model, "objective", None) or nn.Module()
    own: list[Tensor] = list(objective.parameters())
    owned = set(own)
    duals = {p for part in objective.modules() if hasattr(part, "dual_parameters") for p in part.dual_parameters()}
    trained = [p for p in model.parameters() if p.requires_grad and p not in owned]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    factor = RATE_OF_VARIABLES / settings.learning_rate
    for ascends in (False, True):
        if chosen := [p for p in own if (p in duals) == ascends]:
            groups.append({"params": chosen, "weight_decay": 0.0, "maximize": ascends, "rate_factor": factor})
    if settings.optimizer == "stable_adamw":
        return StableAdamW(groups, settings.learning_rate, settings.betas, settings.eps)
    return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=True)


RATE_OF_VARIABLES = 0.02
"""Of multipliers and other variables of an objective, whose steps must not be as small as a pretrained model's."""


class StableAdamW(Optimizer):
    """AdamW with the update clipping of Adafactor (Wortsman et al., "Stable and low-precision training", 2023, alg. 2).

    Each tensor's rate is divided by max(1, RMS), where RMS² is the mean of g² / max(v, ε²): by as much as its gradient
    exceeds what the running mean of its square, v, expects.

    Args:
        groups: of parameters, each with its `weight_decay`.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "maximize": False})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; no closure is taken."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, -parameter.grad if group["maximize"] else parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            # On the CPU: a number of Python's own would be lost between checkpoints of the fused AdamW and these.
            state |= {"step": torch.tensor(0.0)}
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        state["step"] += 1
        (beta1, beta2), step = group["betas"], float(state["step"])
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        unbiased = square / (1 - beta2**step)
        rms = (gradient.square() / unbiased.clamp(min=group["eps"] ** 2)).mean().sqrt()
        rate = group["lr"] / rms.clamp(min=1.0)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.sub_(mean / (1 - beta1**step) / (unbiased.sqrt() + group["eps"]) * rate)


def learning_rate(step: int, settings: TrainingSettings) -> float:
    """The rate of a step (from 0): linear warm-up to the peak, then what the schedule says, towards zero at the end."""
    peak = settings.learning_rate
    if step < settings.warmup_steps:
        return peak * (step + 1) / settings.warmup_steps
    falling = settings.num_steps - settings.warmup_steps
    left = settings.num_steps - step
    if settings.schedule == "wsd":
        return peak * min(1.0, left / max(1, settings.decay_steps))
    if settings.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * (1 - left / max(1, falling)))) / 2
    return peak * left / max(1, falling)


class Diverged(UserError):
    """Loss or gradients are not finite: these settings come to no result."""


def check_finite(step: int, values: Mapping[str, float], scale: float | None = None) -> None:
    """Check a run's metrics after so many steps.

    Args:
        scale: of a float16 loss; halved with each step that is left out as its gradients are too large. Where that goes
            on, nothing is learned.

    Raises:
        Diverged: names those that are not finite, or says that the scale has fallen too low.
    """
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    problem = f"{', '.join(broken)} is not a finite number at step {step}" if broken else ""
    if scale is not None and scale < 2.0**-10:
        problem = (
            f"float16 gradients are not finite at step after step: the loss scale fell to {scale:.1e} at step {step}"
        )
    if problem:
        raise Diverged(
            f"{problem}: the run has diverged. Lower the learning rate, lengthen the warm-up, set max_grad_norm"
            f"{'' if broken else ' or mixed_precision to bf16 or false'}, and start again; the checkpoints written so "
            "far are kept."
        )
