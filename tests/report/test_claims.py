"""What docs/ say of transformers' module and of causal use, computed anew.

Shapes: B batch, H heads, N tokens, D head dim, E = H x D.
"""

import re
from collections.abc import Callable

import pytest
import torch
from small import ROOT
from torch import Tensor, nn
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from nystromformer.attention import NystromAttention, create_attention

HEADS, DIM, LANDMARKS, TAPS, LENGTH = 12, 64, 64, 33, 512
SIZES = {"num_heads": HEADS, "head_dim": DIM, "num_landmarks": LANDMARKS}
VALID = LENGTH - LENGTH // 10
"""Tokens that count where there is a mask."""


class Third(nn.Module):
    """Stands where a projection is: its part of an input that holds Q, K and V beside each other."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, dim=-1)[self.index]


Attention = Callable[..., Tensor]
"""Of Q, K and V, (3, B, H, N, D), and perhaps a mask."""


def both() -> tuple[Attention, Attention]:
    """transformers' attention, set to 512 tokens, on projected tensors; and ours with its convolution."""
    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_landmarks=LANDMARKS,
        segment_means_seq_len=LENGTH,
        conv_kernel_size=TAPS,
    )
    module = NystromformerSelfAttention(config).eval()
    module.query, module.key, module.value = Third(0), Third(1), Third(2)
    ours = create_attention("nystrom", **SIZES, conv_kernel_size=TAPS)
    assert ours.skip is not None
    ours.skip.weight.data.copy_(module.conv.weight.data)

    def theirs(qkv: Tensor, keep_BN: Tensor | None = None) -> Tensor:
        joined = torch.cat([x.transpose(1, 2).flatten(2) for x in qkv], dim=-1)
        bias = None if keep_BN is None else torch.zeros(keep_BN.shape).masked_fill(~keep_BN, -1e9)[:, None, None]
        out: Tensor = module(joined, attention_mask=bias)[0]
        return out.unflatten(2, (HEADS, DIM)).transpose(1, 2)

    return theirs, lambda qkv, keep_BN=None: ours(*qkv, keep_BN)


def normal(*shape: int) -> Tensor:
    """(3, B, H, N, D): Q, K and V."""
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(sum(shape)))


def changed(after: Tensor, before: Tensor) -> float:
    return float((after - before).norm() / before.norm())


def masked_content(attention: Attention) -> float:
    qkv = normal(2, HEADS, LENGTH, DIM)
    other = qkv.clone()
    other[..., VALID:, :] = normal(2, HEADS, LENGTH - VALID, DIM)
    keep_BN = (torch.arange(LENGTH) < VALID).expand(2, -1)
    return changed(attention(other, keep_BN)[:, :, :VALID], attention(qkv, keep_BN)[:, :, :VALID])


def neighbour(attention: Attention, length: int, scale: float) -> float:
    qkv = normal(2, HEADS, length, DIM)
    other = qkv.clone()
    other[:, 1] = scale * normal(HEADS, length, DIM)
    return changed(attention(other)[0], attention(qkv)[0])


def stated() -> list[tuple[str, str]]:
    """The last two columns of the table, without their header."""
    text = (ROOT / "docs" / "results" / "transformers.md").read_text(encoding="utf-8")
    section = text.partition("\n## Padding and other rows in transformers' module\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| \w[^|]* \| (\d+) % \| (\d+) \|$", section, re.MULTILINE)


@torch.no_grad()
def test_what_changes_transformers_output_and_not_ours() -> None:
    measured = [(masked_content(each), neighbour(each, LENGTH // 2, 1), neighbour(each, LENGTH, 3)) for each in both()]
    assert measured[1] == (0, 0, 0)
    table = stated()
    assert [zero for _, zero in table] == ["0"] * 3
    for (figure, _), value in zip(table, measured[0], strict=True):
        assert float(figure) == pytest.approx(100 * value, abs=0.6)


@torch.no_grad()
def test_factors_that_are_masked_do_not_hide_the_future() -> None:
    attention = create_attention("nystrom", **SIZES)
    assert isinstance(attention, NystromAttention)
    segment_N = torch.arange(LENGTH) * LANDMARKS // LENGTH
    landmark_M = torch.arange(LANDMARKS)
    past_NM = landmark_M[None] < segment_N[:, None]
    seen_MN = segment_N[None] <= landmark_M[:, None]

    def causal_by_factors(qkv: Tensor) -> Tensor:
        queries, inverse, keys = attention.factors(*qkv[:2])
        queries, keys = queries * past_NM, keys * seen_MN
        queries, keys = (x / x.sum(-1, keepdim=True).clamp_min(1e-30) for x in (queries, keys))
        return queries @ inverse @ keys @ qkv[2]

    def causal_softmax(qkv: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)

    half = LENGTH // 2
    qkv = normal(1, HEADS, LENGTH, DIM)
    other = qkv.clone()
    other[..., half:, :] = normal(1, HEADS, half, DIM)
    leaks = [changed(f(other)[:, :, :half], f(qkv)[:, :, :half]) for f in (causal_by_factors, causal_softmax)]
    text = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    figure = re.search(r"first half by (\d+) % of their norm", text.replace("\n", " "))
    assert figure is not None
    assert float(figure[1]) == pytest.approx(100 * leaks[0], abs=1.5)
    assert leaks[1] == 0
