"""Which tokens are global: a row's first ones and those that are marked; what they attend to."""

import pytest
import torch
from attention_cases import qkv, random_mask, suffix_mask
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.blocks import Extra, attend_to_neighbours
from nystromformer.attention.global_tokens import GlobalTokens, attend_from_global

CAPACITY = "a row has 9 tokens that are marked as global .beside its first 1., expected at most global_capacity = 8"


def marked(batch: int, length: int) -> Tensor:
    return random_mask(batch, length, seed=7, share=0.3)


def with_three_rows(length: int = 40) -> AttentionMask:
    keep = random_mask(3, length)
    keep[2] = False
    return AttentionMask(keep, marked(3, length))


@pytest.mark.parametrize("num_first", [0, 1, 5, 60])
@pytest.mark.parametrize("holes", [False, True], ids=["suffix", "holes"])
def test_slots_hold_the_first_and_the_marked_tokens(num_first: int, holes: bool) -> None:
    keep = random_mask(4, 40) if holes else suffix_mask(40, 40, 21, 3, 0)
    mask = AttentionMask(keep, marked(4, 40))
    tokens = mask.global_tokens(num_first, 40)
    for row in range(4):
        marks = mask.global_BN[row][keep[row]].tolist()  # type: ignore[index]
        expected = [place for place, mark in enumerate(marks) if mark or place < num_first]
        assert tokens.places_BG[row][tokens.there_BG[row]].tolist() == expected
        assert tokens.is_global_BN[row].nonzero()[:, 0].tolist() == expected
    assert (tokens.places_BG >= 0).all()
    assert (tokens.places_BG < 40).all()


def test_without_a_mask_the_first_are_global() -> None:
    tokens = GlobalTokens.of_length(2, 3, 5, torch.device("cpu"))
    assert tokens.there_BG.tolist() == [[True] * 3 + [False] * 2] * 2
    assert tokens.places_BG.tolist() == [[0, 1, 2, 2, 2]] * 2
    assert tokens.is_global_BN.all()


def test_on_a_cpu_there_are_about_as_many_slots_as_needed() -> None:
    keep = torch.ones(2, 100, dtype=torch.bool)
    for count, slots in [(0, 0), (1, 16), (16, 16), (17, 20)]:
        mask = AttentionMask(keep, torch.arange(100).flip(0).expand(2, -1) < count)
        assert mask.global_tokens(1, 20).places_BG.shape == (2, 1 + slots)


def test_more_marks_than_there_is_room_for_are_an_error() -> None:
    marks = torch.zeros(2, 30, dtype=torch.bool)
    marks[1, :10] = True
    keep = torch.ones(2, 30, dtype=torch.bool)
    with pytest.raises(ValueError, match=CAPACITY):
        AttentionMask(keep, marks).global_tokens(1, 8)
    assert AttentionMask(keep, marks).global_tokens(2, 8).there_BG.sum().item() == 2 + 10
    keep[1, 3] = False
    assert AttentionMask(keep, marks).global_tokens(1, 8).there_BG.sum().item() == 1 + 9


@pytest.mark.slow
def test_where_one_cannot_look_it_is_an_error_of_the_graph() -> None:
    def slots(keep: Tensor, marks: Tensor) -> Tensor:
        return AttentionMask(keep, marks).global_tokens(1, 8).there_BG

    torch._dynamo.reset()
    compiled = torch.compile(slots, fullgraph=True, backend="aot_eager")
    keep, marks = torch.ones(1, 30, dtype=torch.bool), torch.arange(30)[None] < 9
    assert compiled(keep, marks).sum() == 9
    with pytest.raises(RuntimeError, match="global_capacity = 8"):
        compiled(keep, torch.arange(30)[None] < 10)


def test_they_attend_to_all_valid_tokens_and_nothing_comes_of_empty_slots() -> None:
    mask = with_three_rows()
    q, k, v = qkv(3, 40, dtype=torch.float64)
    tokens = mask.global_tokens(2, 40)
    lengths = mask.lengths_B
    own = attend_from_global(tokens.taken(q), k, v, lengths)
    out = tokens.placed(own, torch.zeros_like(q))
    for row in range(3):
        count = int(lengths[row])
        scores = q[row, :, :count] @ k[row, :, :count].mT / q.shape[3] ** 0.5
        expected = torch.softmax(scores, -1) @ v[row, :, :count]
        places = tokens.is_global_BN[row][:count]
        torch.testing.assert_close(out[row][:, :count][:, places], expected[:, places])
        assert (out[row][:, :count][:, ~places] == 0).all()
        assert (out[row][:, count:] == 0).all()
    # The last row is empty: of its slots nothing was read, nothing is learned from it.
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert (gradient[2] == 0).all()
        assert (gradient[0] != 0).any()


def test_keys_that_all_blocks_have_in_common_are_attended_to_once() -> None:
    mask = with_three_rows()
    x = qkv(3, 40, dtype=torch.float64)
    q, k, v = (a * (torch.arange(40) < mask.lengths_B[:, None])[:, None, :, None] for a in x)
    tokens = mask.global_tokens(2, 40)
    extra = Extra(tokens.taken(k), tokens.taken(v), tokens.there_BG, tokens.is_global_BN)
    out = attend_to_neighbours(q, k, v, mask.lengths_B, 4, 1, 3, extra)
    near = (torch.arange(40)[:, None] - torch.arange(40)).abs() <= 3
    for row in range(2):
        count = int(mask.lengths_B[row])
        allowed = (near | tokens.is_global_BN[row])[:count, :count]
        scores = q[row, :, :count] @ k[row, :, :count].mT / q.shape[3] ** 0.5
        expected = torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ v[row, :, :count]
        torch.testing.assert_close(out[row, :, :count], expected)
    for gradient in torch.autograd.grad(out[:, :, :8].sum(), x):
        assert torch.isfinite(gradient).all()
