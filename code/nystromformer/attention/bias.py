"""What is added to scores so that some keys are left out."""

import torch
from torch import Tensor


def infinite_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where allowed, else -inf. Some key must be allowed: a softmax over nothing is no number."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, float("-inf"))


def finite_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where allowed, else `never`."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, never(dtype))


def never(dtype: torch.dtype) -> float:
    """A bias that leaves a key out. Finite, so that a block without any key gets numbers, which nobody reads."""
    return torch.finfo(dtype).min / 4
