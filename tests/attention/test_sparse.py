"""Sparse attention: how much it holds at once, where it is exact, and what it refuses."""

import torch
from attention_cases import DIM, HEADS, qkv, suffix_mask

from nystromformer.attention import create_attention

EVERY = [{"pattern": pattern, "heads": heads} for pattern in ("strided", "fixed") for heads in ("merged", "separate")]


def test_the_last_tokens_of_a_short_block_are_seen_by_all() -> None:
    """Whatever stands behind the row's end in its padded length."""
    module = create_attention("sparse", num_heads=HEADS, head_dim=DIM, pattern="fixed", stride=8, summary=2)
    q, k, v = (x.detach() for x in qkv(1, 40))
    keep = suffix_mask(40, 19)
    before = module(q, k, v, keep)
    for token, is_seen in ((16, False), (17, True), (18, True), (6, True), (5, False)):
        changed = v.clone()
        changed[:, :, token] += 1
        moved = (module(q, k, changed, keep) - before).abs().amax((0, 1, 3)) > 1e-6
        block = torch.arange(40) // 8 == token // 8
        assert moved[:19].equal((block | torch.tensor(is_seen).expand(40))[:19]), token


def test_sums_beyond_float16_are_of_shares() -> None:
    module = create_attention("sparse", num_heads=1, head_dim=DIM, stride=256)
    q = torch.zeros(1, 1, 2048, DIM, dtype=torch.float16)
    torch.testing.assert_close(module(q, q, torch.full_like(q, 200.0)), torch.full_like(q, 200.0))
