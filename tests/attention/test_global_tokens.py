"""How many tokens of a row may be global."""

import pytest
import torch

from nystromformer.attention import AttentionMask

CAPACITY = "a row has 9 tokens marked as global .not counting its first 1., expected at most global_capacity = 8"


def test_more_marks_than_there_is_room_for_are_an_error() -> None:
    marks = torch.zeros(2, 30, dtype=torch.bool)
    marks[1, :10] = True
    keep = torch.ones(2, 30, dtype=torch.bool)
    with pytest.raises(ValueError, match=CAPACITY):
        AttentionMask(keep, marks).global_tokens(1, 8)
    assert AttentionMask(keep, marks).global_tokens(2, 8).there_BG.sum().item() == 2 + 10
    keep[1, 3] = False
    assert AttentionMask(keep, marks).global_tokens(1, 8).there_BG.sum().item() == 1 + 9
