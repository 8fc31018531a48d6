"""BigBird: its random blocks, its global tokens, what it costs, and transformers' module beside it."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import DIM, HEADS, bigbird, qkv, random_mask, suffix_mask
from torch import Tensor

from nystromformer.attention import AttentionMask, create_attention, reference
from nystromformer.attention.bigbird import BigBirdAttention, random_blocks


def module_of(**parameters: Any) -> BigBirdAttention:
    torch.manual_seed(1)
    module = create_attention("bigbird", num_heads=HEADS, head_dim=DIM, **{"block_size": 4} | parameters)
    assert isinstance(module, BigBirdAttention)
    return module


def salts(heads: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(2**32, (heads, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("first", "around", "count"), [(2, 1, 3), (0, 0, 1), (1, 2, 4), (3, 1, 9)])
def test_random_blocks_are_others_and_as_many_as_there_are(first: int, around: int, count: int) -> None:
    rows = torch.tensor([1, 2, 3, 5, 8, 13, 30])
    picks_BHCR, there_BHCR = random_blocks(salts(3, count), torch.arange(30), rows, first, around)
    for row, blocks in enumerate(rows.tolist()):
        for block in range(blocks):
            others = {each for each in range(first, blocks) if abs(each - block) > around}
            for head in range(3):
                own = picks_BHCR[row, head, block][there_BHCR[row, head, block]].tolist()
                assert len(own) == len(set(own)) == min(count, len(others))
                assert set(own) <= others


def test_each_set_of_random_blocks_is_as_likely_as_any() -> None:
    """Over heads; and a block tells nothing of the next one's."""
    heads = 20_000
    picks_HCR = random_blocks(salts(heads, 2), torch.arange(2, 4), torch.tensor([8]), 1, 1)[0][0]
    sets = [{tuple(sorted(pick)) for pick in picks_HCR[:, block].tolist()} for block in range(2)]
    assert sets == [{(a, b) for a in others for b in others if a < b} for others in ((4, 5, 6, 7), (1, 5, 6, 7))]
    for block in range(2):
        low, high = picks_HCR[:, block].sort(1).values.T
        for index in sets[block]:
            share = ((low == index[0]) & (high == index[1])).double().mean().item()
            assert abs(share - 1 / 6) < 5 * (5 / 36 / heads) ** 0.5
    both = ((picks_HCR[:, 0] == 7).any(1) & (picks_HCR[:, 1] == 7).any(1)).double().mean().item()
    assert abs(both - 1 / 4) < 5 * (3 / 16 / heads) ** 0.5


def test_random_blocks_are_the_modules_own_and_saved_with_it() -> None:
    module, twin = module_of(), module_of()
    assert torch.equal(module.salts_HR, twin.salts_HR), "the run's seed decides them"
    torch.manual_seed(2)
    other = create_attention("bigbird", num_heads=HEADS, head_dim=DIM, block_size=4)
    x = [a.detach() for a in qkv(1, 100)]
    out = module(*x)
    assert not torch.allclose(other(*x), out), "layers and runs differ"
    assert not torch.equal(module.salts_HR[0], module.salts_HR[1]), "and heads"
    module.at_step(10**6)
    random.seed(0)
    np.random.seed(0)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(*x), out)


@pytest.mark.parametrize("parameters", [{}, {"num_global_blocks": 0}], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_marked_tokens_attend_to_all_and_all_to_them(parameters: dict[str, int], share: float) -> None:
    """In the first blocks too, which are global already, and among holes."""
    module = module_of(num_random_blocks=1, **parameters).double()
    keep, marked = random_mask(2, 70), random_mask(2, 70, seed=5, share=share)
    marked[0] = False
    x = qkv(2, 70, dtype=torch.float64)
    out = module(*x, AttentionMask(keep, marked))
    expected = torch.cat(
        [bigbird(module, *(a[b : b + 1] for a in x), keep[b : b + 1], marked[b][keep[b]]) for b in range(2)]
    )
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), x) for y in (out, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_transformers_module_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its global blocks, the first and the last one, and its random blocks."""
    peers = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    size, blocks, count = 4, 16, 2
    sizes = {"hidden_size": HEADS * DIM, "num_attention_heads": HEADS}
    config = peers.BigBirdConfig(**sizes, block_size=size, num_random_blocks=count, max_position_embeddings=64)
    peer = peers.BigBirdBlockSparseAttention(config, seed=3).train()  # else its random blocks are all the first
    drawn = []

    def draw(**parameters: Any) -> Any:
        drawn[:] = type(peer)._bigbird_block_rand_mask_with_head(peer, **parameters)
        return drawn

    monkeypatch.setattr(peer, "_bigbird_block_rand_mask_with_head", draw)
    N = size * blocks
    q, k, v = qkv(2, N)
    keep = suffix_mask(N, N, N)
    masks = peers.BigBirdModel.create_masks_for_block_sparse_attn(keep.float(), size)
    where = [masks[1], masks[2], masks[3], masks[0], masks[0], HEADS, count, DIM, size, size, 2, N, N, 3, None, None]
    theirs = peer.bigbird_block_sparse_attention(q, k, v, *where)[0].transpose(1, 2)

    def same(salts_HR: Tensor, blocks_C: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        picks_BHCR = torch.tensor(np.stack(drawn))[None]
        assert blocks_C.tolist() == list(range(1, blocks)), "all but the first"
        last = torch.zeros_like(picks_BHCR[:, :, :1])  # The last block's tokens are marked: it needs none.
        picks_BHCR = torch.cat([picks_BHCR, last], 2)
        return picks_BHCR, torch.ones_like(picks_BHCR, dtype=torch.bool)

    monkeypatch.setattr("nystromformer.attention.bigbird.random_blocks", same)
    module = module_of(num_random_blocks=count, num_global_blocks=1)
    ours = module(q, k, v, AttentionMask(keep, torch.arange(N).expand(2, -1) >= N - size))
    assert not torch.allclose(ours.double(), reference.softmax_attention(q, k, v), atol=0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
