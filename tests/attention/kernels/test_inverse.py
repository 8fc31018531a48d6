"""The inverse that stays on the chip, by its residual."""

import math

import pytest
import torch
from interpreting import DEVICE

from nystromformer.attention.kernels import forward
from nystromformer.attention.pinv import iterative_pinv


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("M", [32, 64])
@pytest.mark.parametrize(("precision", "rounding"), [("tf32x3", 1e-7), ("bf16x3", 1e-6)])
def test_residual(precision: str, rounding: float, M: int, spread: float) -> None:
    """As small as by tensor operations in float64, but for rounding; from nearly of rank one to well apart."""
    D = M
    generator = torch.Generator().manual_seed(M)
    q, k = (torch.randn(1, 2, M, D, generator=generator).to(DEVICE) * spread for _ in range(2))
    # With the identity for T, W is Z.
    identity = torch.eye(M, device=DEVICE).expand(1, 2, 1, M, D).contiguous()
    line = torch.zeros(1, 2, 1, M, device=DEVICE)
    context, inverse = torch.empty_like(q), torch.empty_like(q)
    root = D**-0.5
    forward.landmark_system_kernel[(2,)](
        *(q, k, identity, line, line + 1.0, q, None, None, None, context, torch.empty_like(line), inverse),
        *(q.stride(0), q.stride(1), q.stride(2), 2, root * math.log2(math.e)),
        M=M,
        D=D,
        S=1,
        ITERATIONS=6,
        HAS_MASK=False,
        PRECISION=precision,
        num_warps=8,
    )
    a = torch.softmax(q.double() @ k.double().mT * root, -1)
    expected, residual = (
        torch.linalg.matrix_norm(a @ z @ a - a) / torch.linalg.matrix_norm(a)
        for z in (iterative_pinv(a), inverse.double())
    )
    assert (residual <= expected + rounding).all(), (residual, expected)
