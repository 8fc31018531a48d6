"""Which tokens are global: a row's first ones and those that are marked; what they attend to."""

import pytest
import torch
from attention_cases import random_mask, suffix_mask
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.attention.global_tokens import GlobalTokens

CAPACITY = "a row has 9 tokens marked as global .not counting its first 1., expected at most global_capacity = 8"


def marked(batch: int, length: int) -> Tensor:
    return random_mask(batch, length, seed=7, share=0.3)


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
