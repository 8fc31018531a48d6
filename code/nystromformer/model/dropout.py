"""Dropout, with the sum that follows it in a layer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nystromformer.attention.tracing import is_plain
from nystromformer.config import MOST_DROPOUT

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """`dropout(x)` or `dropout(x, residual)`: residual + x, with entries of x zeroed with probability `p` in training.

    On a CPU each entry takes 16 random bits, so that `p` is rounded to a multiple of 2⁻¹⁶, and the rest is scaled by
    what is exact for that: torch's own draws one number an entry on one core and takes four times as long. All random
    numbers are the default generator's. From 2⁻¹⁷ below one on, `p` would be rounded to one, and is refused.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p <= MOST_DROPOUT:
            raise ValueError(f"p must be a probability from 0 to {MOST_DROPOUT}, found {p}")
        self.p = p

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if not self.training or self.p == 0:
            return x if residual is None else residual + x
        if x.device.type == "cpu" and not is_plain():
            dropped: Tensor = _CpuDropout.apply(x, residual, self.p)  # type: ignore[no-untyped-call]
            return dropped
        dropped = F.dropout(x, self.p)
        return dropped if residual is None else residual + dropped


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        lost = round(p * _LEVELS)
        scale = _LEVELS / (_LEVELS - lost)
        keep = _keep(x.numel(), lost).view(x.shape)
        ctx.save_for_backward(keep)
        ctx.scale = scale
        kept = x * keep
        return kept.mul_(scale) if residual is None else torch.add(residual, kept, alpha=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), grad if ctx.needs_input_grad[1] else None, None


def _keep(count: int, lost: int) -> Tensor:
    """`count` independent ones and zeros, each zero in `lost` of 2¹⁶ cases; uint8, by which a product takes a sixth of
    the time that a choice by bools does.
    """
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = torch.empty(count, dtype=torch.uint8)
    return torch.ge(words.view(torch.int16)[:count], lost - _LEVELS // 2, out=keep)
