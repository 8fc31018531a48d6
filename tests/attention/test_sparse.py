"""Sparse attention: how much it holds at once, where it is exact, and what it refuses."""

from typing import Any

import pytest
import torch
from attention_cases import DIM, HEADS, qkv, suffix_mask
from largest import Largest
from small import small_config

from nystromformer.attention import create_attention, reference
from nystromformer.config.attention import attention_config
from nystromformer.errors import UserError

EVERY = [{"pattern": pattern, "heads": heads} for pattern in ("strided", "fixed") for heads in ("merged", "separate")]


@pytest.mark.parametrize("parameters", EVERY, ids=lambda each: "-".join(each.values()))
def test_no_tensor_grows_with_the_square_of_the_length(parameters: dict[str, str]) -> None:
    largest = []
    for root in (16, 32):
        module = create_attention("sparse", num_heads=HEADS, head_dim=DIM, stride=root, summary=2, **parameters)
        x = qkv(1, root * root)
        with Largest() as seen:
            torch.autograd.grad(module(*x, suffix_mask(root * root, root * root - 3)).sum(), x)
        largest.append(seen.elements)
    # A length four times as large: N√N grows eightfold, N² would sixteenfold.
    assert largest[1] < 8.5 * largest[0]
    assert largest[1] < 4 * HEADS * 32**3


@pytest.mark.parametrize(
    "parameters",
    [{"pattern": "strided"}, {"pattern": "fixed"}, {"pattern": "fixed", "heads": "separate"}],
    ids=lambda each: "-".join(each.values()),
)
def test_rows_are_exact_up_to_the_length_that_the_config_says(parameters: dict[str, Any]) -> None:
    config = attention_config("sparse", stride=6, summary=2, **parameters)
    module = create_attention(config, num_heads=HEADS, head_dim=DIM).double()
    exact = int(config.longest_exact)
    for length in (exact, exact + 1):
        q, k, v = qkv(1, length, dtype=torch.float64)
        difference = (module(q, k, v) - reference.softmax_attention(q, k, v)).abs().max()
        assert (difference < 1e-12) == (length == exact)


def test_a_stride_of_one_and_a_summary_of_whole_blocks_are_exact_at_any_length() -> None:
    x = qkv(2, 30, dtype=torch.float64)
    for parameters in ({"stride": 1}, {"pattern": "fixed", "stride": 4, "summary": 4}):
        config = attention_config("sparse", **parameters)
        assert config.longest_exact == float("inf")
        module = create_attention(config, num_heads=HEADS, head_dim=DIM).double()
        torch.testing.assert_close(module(*x), reference.softmax_attention(*x))


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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="summary: expected at most stride = 4, the tokens of a block, found 5"):
        attention_config("sparse", pattern="fixed", stride=4, summary=5)
    assert attention_config("sparse", stride=4).summary > 4, "only the fixed pattern has one"
    with pytest.raises(ValueError, match="stride: expected"):
        attention_config("sparse", stride=0)
    with pytest.raises(ValueError, match="separate heads must be at least 2"):
        create_attention("sparse", num_heads=1, head_dim=DIM, heads="separate")
    attention = {"name": "sparse", "stride": 33}
    separate = {"name": "sparse", "stride": 8, "heads": "separate"}
    with pytest.raises(UserError, match='heads: expected "merged" where num_head is 1'):
        small_config(model__attn_type=separate, model__num_landmarks=None, model__num_head=1, model__head_dim=16)
    with pytest.raises(UserError, match="stride: expected at most max_seq_len = 32, found 33"):
        small_config(model__attn_type=attention, model__num_landmarks=None)
