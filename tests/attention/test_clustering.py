"""Landmarks by Lloyd's iterations: what they are to reach."""

import torch
from attention_cases import qkv, suffix_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nystromformer.attention.clustering import lloyd_centres
from nystromformer.attention.landmarks import fixed_segment_means


def squared_distances(x: Tensor, centres: Tensor) -> Tensor:
    """(B, H): of each valid token to its nearest centre, summed."""
    return torch.cdist(x, centres).square().amin(-1).sum(-1)


@settings(max_examples=40)
@given(seed=st.integers(0, 999), pieces=st.integers(2, 9), size=st.integers(1, 6))
def test_an_iteration_brings_tokens_no_farther_from_their_centres(seed: int, pieces: int, size: int) -> None:
    # Without a centre that loses all its tokens: that one goes back to where it started.
    x = qkv(2, pieces * size, seed=seed, dtype=torch.float64)[0].detach()
    means = fixed_segment_means(x, pieces)
    before = squared_distances(x, means)
    for iterations in range(1, 5):
        centres = lloyd_centres(x, means, None, iterations)
        nearest = torch.cdist(x, centres).argmin(-1)
        after = squared_distances(x, centres)
        if any(len(one.unique()) < pieces for one in nearest.flatten(0, 1)):
            return
        assert (after <= before + 1e-9).all()
        before = after


def test_centres_find_groups_that_segments_cut_through() -> None:
    # Three groups far from each other; each segment's mean leans towards one of them.
    generator = torch.Generator().manual_seed(0)
    groups = torch.tensor([[30.0, 0], [0, 30], [-30, -30]], dtype=torch.float64)
    of_token = torch.tensor([0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 0, 2])
    x = groups[of_token] + torch.randn(12, 2, generator=generator, dtype=torch.float64)
    means = fixed_segment_means(x[None, None], 3)
    centres = lloyd_centres(x[None, None], means, None, 3)[0, 0]
    for group in range(3):
        torch.testing.assert_close(centres[group], x[of_token == group].mean(0))


def test_a_centre_without_tokens_is_its_segments_mean() -> None:
    # The second segment's mean lies between its tokens, each of which is nearer to another centre.
    x = torch.tensor([10.0, 10, 11, -11, -10, -10], dtype=torch.float64).view(1, 1, 6, 1)
    means = fixed_segment_means(x, 3)
    centres = lloyd_centres(x, means, None, 2).flatten()
    torch.testing.assert_close(centres, torch.tensor([31 / 3, 0, -31 / 3], dtype=torch.float64))


def test_masked_tokens_move_no_centre() -> None:
    x = qkv(1, 40, dtype=torch.float64)[0].detach()
    longer = torch.cat([x, torch.zeros(1, 2, 25, 8, dtype=torch.float64)], 2)
    means = fixed_segment_means(x, 5)
    with_padding = lloyd_centres(longer, means, suffix_mask(65, 40), 3)
    torch.testing.assert_close(with_padding, lloyd_centres(x, means, None, 3))
