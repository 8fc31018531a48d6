"""Trying the kernels once before they are trusted: a driver, a compiler and a GPU are met that no test has met."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.kernels import fused_attention
from nystromformer.attention.kernels.plan import constant_when_compiled
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.pinv import iterative_pinv

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Relative errors above these are mistakes; rounding is far below."""
_verdicts: dict[tuple[object, ...], str | None] = {}


@constant_when_compiled
def failure(
    device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int, has_mask: bool
) -> str | None:
    """What goes wrong where a small input goes forward and backward; None where the kernels agree with the equations.

    Args:
        device: such as cuda:0.
        taps: K, or 0 without a convolution.
        has_mask: with a mask kernels are others than without.
    """
    case = (device, num_landmarks, head_dim, dtype, taps, has_mask)
    if case not in _verdicts:
        if torch.device(device).type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "they were not tried before a CUDA graph is captured: run once before"
        try:
            # In a thread of its own: what the caller is amid of (checkpointing's hooks, autocast, inference mode,
            # another default device) is not the trial's.
            with ThreadPoolExecutor(1) as thread:
                _verdicts[case] = thread.submit(_try, *case).result()
        except Exception as error:  # of whatever kind: a compiler's, a driver's
            # Kept, even if memory was short: another answer in the backward would be another path than the forward's,
            # and a trial there would wait for the thread of autograd that waits for it.
            _verdicts[case] = _sentence(device, error)
    return _verdicts[case]


def _try(device: str, num_landmarks: int, head_dim: int, dtype: torch.dtype, taps: int, has_mask: bool) -> str | None:
    M, N = num_landmarks, 2 * num_landmarks + 16
    generator = torch.Generator().manual_seed(0)
    q, k, v, d_out = (torch.randn(1, 2, N, head_dim, generator=generator).to(device, dtype) for _ in range(4))
    weight = torch.randn(2, 1, taps, 1, generator=generator).to(device) if taps else None
    inputs = [x.requires_grad_() for x in (q, k, v, *([] if weight is None else [weight]))]
    length = N - 13 if has_mask else N
    mask = AttentionMask(torch.arange(N, device=device)[None] < length) if has_mask else None
    out = fused_attention(q, k, v, mask, weight, M, iterations=6)
    results = [out, *torch.autograd.grad(out, inputs, d_out)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected_out = _by_the_equations(*(x[:, :, :length] for x in wide[:3]), *wide[3:], num_landmarks=M)
    expected_out = F.pad(expected_out, (0, 0, 0, N - length))
    expected = [expected_out, *torch.autograd.grad(expected_out, wide, d_out.double())]
    errors = [_error(a, b) for a, b in zip(results, expected, strict=True)]
    wrong = [f"{error:.2g}" for error in errors if not error < _TOLERANCE[dtype]]  # NaN is not below either
    return f"their results are wrong on {device} (relative errors {', '.join(wrong)})" if wrong else None


def _sentence(device: str, error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"they fail on {device}: {type(error).__name__}" + (f": {said[-1][:200]}" if said else "")


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
