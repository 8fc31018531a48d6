"""The scores of keys: their scale, and what is added to them so that some keys are left out."""

import torch
from torch import Tensor


def default_scale(head_dim: int) -> float:
    """1/√D, the scale of eq. 2."""
    return float(head_dim) ** -0.5


def infinite_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where allowed, else -inf. Some key must be allowed: a softmax over nothing is no number."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, float("-inf"))


def finite_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where allowed, else `never`."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, never(dtype))


def never(dtype: torch.dtype) -> float:
    """A bias that leaves a key out. Finite, so that a block without any key gets numbers, which nobody reads."""
    return torch.finfo(dtype).min / 4


def written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(QKᵀ/√D + bias)V of tensors with any number of dimensions, for exported programs: ONNX's converter takes
    fused attention of four alone.
    """
    return torch.softmax(q @ k.mT * default_scale(q.shape[-1]) + bias, -1) @ v
