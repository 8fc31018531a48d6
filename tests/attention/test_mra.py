"""What MRA-2 keeps of the paper beside its oracle."""

from typing import Any

import torch
from attention_cases import DIM, HEADS, qkv, random_mask, suffix_mask

from nystromformer.attention import Attention, create_attention, reference


def mra(**parameters: Any) -> Attention:
    return create_attention("mra", num_heads=HEADS, head_dim=DIM, **{"block_size": 8, "num_blocks": 3, **parameters})


def test_it_is_softmax_where_all_blocks_are_chosen() -> None:
    q, k, v = qkv(3, 23, dtype=torch.float64)
    for keep in (None, suffix_mask(23, 23, 17, 3), random_mask(3, 23)):
        out = mra()(q, k, v, keep)
        torch.testing.assert_close(out, reference.softmax_attention(q, k, v, keep), rtol=1e-9, atol=1e-11)


def test_blocks_of_equal_keys_lose_nothing() -> None:
    q, k, v = (x.detach() for x in qkv(1, 64, dtype=torch.float64))
    q, k, v = (x[:, :, ::8].repeat_interleave(8, 2) for x in (q, k, v))
    out = mra(num_blocks=1)(q, k, v)
    torch.testing.assert_close(out, reference.softmax_attention(q, k, v), rtol=1e-9, atol=1e-11)


def test_more_blocks_are_nearer_to_softmax() -> None:
    q, k, v = (x.detach() for x in qkv(2, 256, dtype=torch.float64))
    # Neighbours have something in common, by which block means can tell what matters.
    q, k = (x[:, :, ::8].repeat_interleave(8, 2) + x / 4 for x in (q, k))
    expected = reference.softmax_attention(q, k, v)
    errors = [float((mra(num_blocks=count)(q, k, v) - expected).norm()) for count in (1, 4, 16)]
    assert errors == sorted(errors, reverse=True)


def test_large_scores_stay_finite() -> None:
    q, k, v = qkv(2, 100, scale=40.0)
    out = mra(num_blocks=2)(q, k, v)
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(x).all() for x in torch.autograd.grad(out.sum(), (q, k, v)))
