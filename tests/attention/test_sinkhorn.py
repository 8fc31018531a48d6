"""Sinkhorn attention: its sorting of blocks, where it is softmax attention, and sinkhorn-transformer beside it."""

import itertools

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from largest import bytes_for_backward
from torch import Tensor

from nystromformer.attention import create_attention, reference
from nystromformer.attention.sinkhorn import SinkhornAttention, balanced


def sinkhorn(**parameters: object) -> SinkhornAttention:
    module = create_attention("sinkhorn", num_heads=HEADS, head_dim=DIM, **parameters)
    assert isinstance(module, SinkhornAttention)
    return module


@settings(max_examples=15)
@given(blocks=st.integers(1, 12), outside=st.integers(0, 3), spread=st.floats(0, 2), seed=st.integers(0, 999))
def test_the_sorting_is_doubly_stochastic(blocks: int, outside: int, spread: float, seed: int) -> None:
    scores = torch.randn(blocks, blocks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    logs = torch.full([blocks + outside] * 2, float("-inf"), dtype=torch.float64).fill_diagonal_(0)
    logs[:blocks, :blocks] = scores
    ones, errors = torch.ones(blocks + outside, dtype=torch.float64), []
    for iterations in (1, 4, 16, 250):
        sorting = balanced(logs[None], iterations)[0].exp()
        torch.testing.assert_close(sorting.sum(0), ones)
        expected = reference.sinkhorn_balanced(scores, iterations)
        torch.testing.assert_close(sorting[:blocks, :blocks], expected, rtol=1e-9, atol=1e-12)
        assert torch.equal(sorting[blocks:, blocks:], torch.eye(outside, dtype=torch.float64))
        errors.append((sorting.sum(1) - ones).abs().max().item())
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(errors)), errors
    assert errors[-1] < 0.01


@pytest.mark.parametrize("length", [24, 21])
def test_a_sharp_sorting_is_softmax_over_two_blocks(length: int) -> None:
    """Blocks that look for the next one, round about: attended to are the own one and that."""
    size, turns = 6, torch.arange(4).roll(-1)
    generator = torch.Generator().manual_seed(3)
    signs = torch.eye(4, DIM, dtype=torch.float64) * 6
    q, k, v = (torch.randn(1, HEADS, 24, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    blocks = torch.arange(24) // size
    q, k = q + signs[turns][blocks], k + signs[blocks]
    q, k, v = (x[:, :, :length] for x in (q, k, v))
    blocks = blocks[:length]

    def allowed(count: int, head: int) -> Tensor:
        return (blocks[:, None] == blocks) | (turns[blocks][:, None] == blocks)

    expected = reference.pattern_attention(q, k, v, allowed=allowed)
    module = sinkhorn(block_size=size, temperature=0.05)
    torch.testing.assert_close(module(q, k, v), expected, rtol=1e-7, atol=1e-7)


def test_what_a_short_last_block_lacks_fades_smoothly() -> None:
    """As a sorted block goes over from a whole one to the last one, no place vanishes of a sudden."""
    module = sinkhorn(block_size=4, temperature=0.2).double()
    q, k, v = (x.detach() for x in qkv(1, 10, dtype=torch.float64))
    moved = [torch.cat([k[:, :, :8], k[:, :, 8:] + by], 2) for by in torch.linspace(-4, 4, 401)]
    outputs = torch.stack([module(q, each, v) for each in moved])
    assert (outputs[0] - outputs[-1]).abs().max() > 0.5
    fine, coarse = (x.diff(dim=0).abs().max() for x in (outputs, outputs[::4]))
    assert coarse > 3 * fine, "a jump is as high in a small step as in a large one"


def test_no_tensor_is_as_large_as_the_pairs_of_tokens() -> None:
    module, sizes = sinkhorn(block_size=32), []
    for length in (1024, 4096):
        x, keep = qkv(1, length), random_mask(1, length)
        held = bytes_for_backward(lambda x=x, keep=keep: module(*x, keep))
        assert max(held.values()) < 4 * HEADS * length * length / 8
        sizes.append(sum(held.values()))
    # Pairs of blocks alone grow with the square.
    assert sizes[1] < 6 * sizes[0]


def test_sinkhorn_transformers_module_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    # It adds noise, and begins with max(score, 0) where this module and the paper begin with exp(score).
    monkeypatch.setattr(peers, "sample_gumbel", lambda shape, device, dtype: torch.zeros(shape, dtype=dtype))
    monkeypatch.setattr(peers, "log", lambda x: x)
    sizes = {"dim": HEADS * DIM, "dim_heads": DIM, "heads": HEADS, "max_seq_len": 48}
    peer = peers.SinkhornAttention(8, **sizes, non_permutative=False, sinkhorn_iter=5, temperature=0.5)
    q, k, _ = (x.detach().abs() for x in qkv(2, 48))
    # The values that it sorts are the keys.
    expected = peer(q.contiguous(), k.contiguous(), k.contiguous())
    module = sinkhorn(block_size=8, iterations=5, temperature=0.5)
    torch.testing.assert_close(module(q, k, k), expected, rtol=1e-4, atol=1e-5)
