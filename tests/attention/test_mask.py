"""What an AttentionMask clears, whatever stood there and however it is differentiated."""

import pytest
import torch
from attention_cases import random_mask
from torch import Tensor

from nystromformer.attention import AttentionMask

B, H = 2, 3
NAN = float("nan")


@pytest.mark.parametrize("tokens", [10, 2000], ids=["few", "many"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_masked_positions_become_zeros_in_values_and_gradients(dtype: torch.dtype, tokens: int) -> None:
    keep_BN = random_mask(B, tokens)
    kept = keep_BN[:, None, :, None].expand(B, H, tokens, 16)
    values = torch.randn(B, tokens, H, 16, generator=torch.Generator().manual_seed(0)).to(dtype).transpose(1, 2)
    for content in (NAN, float("inf"), -1.0):
        x = torch.where(kept, values, content).requires_grad_()
        zeroed = AttentionMask(keep_BN).zeroed(x)
        (gradient,) = torch.autograd.grad(zeroed, x, torch.where(kept, 2 * values, content))
        assert torch.equal(zeroed, torch.where(kept, values, 0.0))
        assert torch.equal(gradient, torch.where(kept, 2 * values, 0.0))
    spoilt = torch.where(kept, NAN, values)
    assert AttentionMask(keep_BN).zeroed(spoilt)[kept].isnan().all(), "what counts is not cleared"


@pytest.mark.parametrize("tokens", [10, 2000], ids=["few", "many"])
def test_it_is_differentiated_twice(tokens: int) -> None:
    mask = AttentionMask(random_mask(B, tokens))
    q, k = torch.randn(2, B, H, tokens, 16, generator=torch.Generator().manual_seed(0))

    def total(x: Tensor) -> Tensor:
        return (mask.zeroed(x) * k).pow(3).sum()

    x = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(x), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, mask.zeroed(6 * q * k**3))
