"""Trying the kernels once before they are trusted: a driver, a compiler and a GPU are met that no test has met."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.compiled import constant_when_compiled
from nystromformer.attention.pinv import iterative_pinv

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Relative errors above these are mistakes; rounding is far below."""


@constant_when_compiled
def failure(device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int) -> str | None:
    """What goes wrong where a small input goes forward and backward; None where the kernels agree with the equations.

    Args:
        device: such as cuda:0.
        taps: K, or 0 without a convolution.
    """
    return _tried(device, num_landmarks, head_dim, dtype, taps)


@cache
def _tried(device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int) -> str | None:
    # Imported here: without triton there is nothing to try.
    from nystromformer.attention.kernels.ops import nystrom_attention

    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, 2 * num_landmarks + 16, head_dim)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(torch.device(device).type, enabled=False):
        *qkv, d_out = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(4))
        weight = torch.randn(2, 1, taps, 1, generator=generator).to(device) if taps else None
        inputs = [x.requires_grad_() for x in (*qkv, *([] if weight is None else [weight]))]
        try:
            out = nystrom_attention(*qkv, *(None,) * 6, weight, num_landmarks, 6)[0]
            found = [out, *torch.autograd.grad(out, inputs, d_out)]
        except Exception as error:  # of whatever kind: a compiler's, a driver's
            return f"they fail on {device}: {type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
        wide = [x.detach().double().requires_grad_() for x in inputs]
        expected_out = _by_the_equations(*wide, num_landmarks=num_landmarks)
        expected = [expected_out, *torch.autograd.grad(expected_out, wide, d_out.double())]
    errors = [_error(a, b) for a, b in zip(found, expected, strict=True)]
    wrong = [f"{error:.2g}" for error in errors if not error < _TOLERANCE[dtype]]  # NaN is not below either
    return f"their results are wrong on {device} (relative errors {', '.join(wrong)})" if wrong else None


def _by_the_equations(q: Tensor, k: Tensor, v: Tensor, *weight: Tensor, num_landmarks: int) -> Tensor:
    """Eq. 17 of rows without padding, with the convolution."""
    _, H, N, D = q.shape
    ids = torch.arange(N, device=q.device) * num_landmarks // N
    member = F.one_hot(ids, num_landmarks).to(q.dtype)
    q_landmarks, k_landmarks = ((member / member.sum(0)).T @ x for x in (q, k))
    scale = D**-0.5
    inverse = iterative_pinv(torch.softmax(q_landmarks @ k_landmarks.mT * scale, -1))
    values = inverse @ (torch.softmax(q_landmarks @ k.mT * scale, -1) @ v)
    out = torch.softmax(q @ k_landmarks.mT * scale, -1) @ values
    return out + F.conv2d(v, weight[0], padding=(weight[0].shape[2] // 2, 0), groups=H) if weight else out


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())
