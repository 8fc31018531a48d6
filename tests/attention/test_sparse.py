"""Sparse attention in float16."""

import torch
from attention_cases import DIM

from nystromformer.attention import create_attention


def test_sums_beyond_float16_are_of_shares() -> None:
    module = create_attention("sparse", num_heads=1, head_dim=DIM, stride=256)
    q = torch.zeros(1, 1, 2048, DIM, dtype=torch.float16)
    torch.testing.assert_close(module(q, q, torch.full_like(q, 200.0)), torch.full_like(q, 200.0))
