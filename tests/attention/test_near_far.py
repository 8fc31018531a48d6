"""What near_far is for: sharp where softmax is sharp, and softmax itself where it can be."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, random_mask, suffix_mask

from nystromformer.attention import Attention, create_attention, reference
from nystromformer.attention.decisions import greatest

NEAR = {"block_size": 8, "num_landmarks": 4, "num_selected": 2}


def near_far(**parameters: object) -> Attention:
    return create_attention("near_far", num_heads=HEADS, head_dim=DIM, **{**NEAR, **parameters})


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


def looking_back(length: int, distance: int) -> list[torch.Tensor]:
    """Queries of which each looks at one token, so many before it: angles that turn by a step each token."""
    turned = torch.arange(length)[:, None] * torch.tensor([0.02, 0.3, 1.1, 2.3])
    code = torch.stack([turned.cos(), turned.sin()], -1).flatten(1) * 40**0.5
    q = code.roll(distance, 0).expand(1, HEADS, -1, -1).double()
    return [q, code.expand(1, HEADS, -1, -1).double(), qkv(1, length, dtype=torch.float64)[2].detach()]


def test_it_sees_the_token_before_which_landmarks_cannot() -> None:
    q, k, v = looking_back(128, 1)
    expected = reference.softmax_attention(q, k, v)[:, :, 1:]  # the first token's is the last, far away
    assert error(near_far()(q, k, v)[:, :, 1:], expected) < 0.05
    # A matrix of rank M cannot be nearer than √(1 − M/N) to one with a one in each row.
    nystrom = create_attention("nystrom", num_heads=HEADS, head_dim=DIM, num_landmarks=64)
    assert error(nystrom(q, k, v)[:, :, 1:], expected) > 0.5


def test_it_sees_a_token_that_all_look_at_wherever_it_stands() -> None:
    q, k, v = (x.detach() for x in qkv(2, 200, dtype=torch.float64))
    q, k = q + 2, k / 5  # 2 is what all queries have in common
    k[:, :, 150] = 1.5
    expected = reference.softmax_attention(q, k, v)
    assert error(near_far(num_selected=1)(q, k, v), expected) < 0.5 * error(near_far(num_selected=0)(q, k, v), expected)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({"neighbours": 4}, id="all near"),
        pytest.param({"num_landmarks": 40}, id="each group one token"),
        pytest.param({"num_selected": 40}, id="all selected"),
        pytest.param({"num_blocks": 5}, id="all blocks"),
    ],
)
def test_it_is_softmax_where_all_is_met_one_by_one(parameters: dict[str, object]) -> None:
    q, k, v = qkv(3, 40, dtype=torch.float64)
    for keep in (None, suffix_mask(40, 40, 21, 3), random_mask(3, 40)):
        out = near_far(**parameters)(q, k, v, keep)
        torch.testing.assert_close(out, reference.softmax_attention(q, k, v, keep), rtol=1e-9, atol=1e-11)


def test_a_group_counts_as_often_as_it_has_tokens() -> None:
    """Where all keys and values of a group are alike, its mean loses nothing."""
    q, k, v = (x.detach() for x in qkv(1, 64, dtype=torch.float64))
    k, v = (x[:, :, :4].repeat_interleave(16, 2) for x in (k, v))
    out = near_far(num_selected=0)(q, k, v)
    torch.testing.assert_close(out, reference.softmax_attention(q, k, v), rtol=1e-9, atol=1e-11)


def test_equal_scores_give_the_earlier_place() -> None:
    scores = torch.tensor([[1.0, -2.0, 3.0, 3.0, -0.5, 3.0], [-4.0, -4.0, -4.0, -1e30, -4.0, 0.0]])
    usable = torch.tensor([True, True, True, True, True, False])
    places, there = greatest(scores, usable, 4)
    assert places[0].tolist() == [2, 3, 0, 4]
    assert places[1].tolist() == [0, 1, 2, 4]
    assert there.all()
    places, there = greatest(scores, usable & torch.tensor([False, True, True, False, False, False]), 4)
    assert [row[:2] for row in places.tolist()] == [[2, 1], [1, 2]]
    assert there.tolist() == [[True, True, False, False]] * 2
