"""Self-attention with projections of its own.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width.
"""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nystromformer.config import ATTENTIONS, NystromConfig
from nystromformer.nn import NystromAttention

B, H, E, M = 3, 4, 32, 8


def tokens(length: int = 20, batch: int = B) -> Tensor:
    return torch.randn(batch, length, E, generator=torch.Generator().manual_seed(length))


def keep(length: int) -> Tensor:
    return torch.arange(length) < torch.tensor([[length], [length // 2], [1]])


def spread(module: nn.Module) -> nn.Module:
    """Weights so large that no softmax is all but uniform, and biases that are none of them zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return module


def test_few_tokens_get_softmax_between_projections() -> None:
    layer, x_BNE, keep_BN = spread(NystromAttention(E, H, num_landmarks=M)), tokens(M), keep(M)
    parts = F.linear(x_BNE, layer.qkv.weight, layer.qkv.bias).split(E, dim=2)
    q, k, v = (part.unflatten(2, (H, E // H)).transpose(1, 2) for part in parts)
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=keep_BN[:, None, None]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x_BNE, keep_BN)[keep_BN], layer.out(exact)[keep_BN], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_by_its_name(attention: str) -> None:
    options = {"max_length": 40} if attention in ("linformer", "synthesizer") else {}
    torch.manual_seed(0)
    layer = NystromAttention(E, H, attention=attention, **options)
    x_BNE, keep_BN = tokens().requires_grad_(), keep(20)
    out = layer(x_BNE, keep_BN)
    more = F.pad(tokens(), (0, 0, 0, 9), value=1e3)
    padded = layer(more, F.pad(keep_BN, (0, 9)))[:, :20]
    torch.testing.assert_close(padded[keep_BN], out[keep_BN], rtol=1e-4, atol=1e-4)
    (out * torch.linspace(-1, 1, E))[keep_BN].sum().backward()
    assert x_BNE.grad is not None
    assert not x_BNE.grad[~keep_BN].any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_what_is_not_looked_at_is_not_projected() -> None:
    assert NystromAttention(E, H).qkv.out_features == 3 * E
    assert NystromAttention(E, H, attention="reformer").qkv.out_features == 2 * E
    assert NystromAttention(E, H, attention="synthesizer", max_length=40).qkv.out_features == 2 * E


def test_options() -> None:
    layer = NystromAttention(E, 3, 5, qkv_bias=False, attention=NystromConfig(num_landmarks=7, conv_kernel_size=3))
    assert layer.qkv.weight.shape == (3 * 15, E)
    assert layer.qkv.bias is None
    assert layer.core.config.num_landmarks == 7
    assert layer(tokens()).shape == (B, 20, E)
    assert {"qkv.weight", "out.weight", "out.bias", "core.skip.weight"} == set(layer.state_dict())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 30, "heads": 4}, "expected dim to be a multiple of heads, found dim = 30 and heads = 4"),
        ({"landmark": 3}, "landmark"),
        ({"attention": "linformer"}, "linformer learns weights for each position: expected max_length"),
        ({"attention": NystromConfig(), "num_landmarks": 3}, "the config already contains the parameters"),
        ({"dropout": 1.5}, "p must be a probability"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, dict) else None,
)
def test_what_cannot_be_built(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        NystromAttention(**{"dim": E, "heads": H, **arguments})


def test_other_input_is_refused() -> None:
    layer = NystromAttention(E, H)
    with pytest.raises(ValueError, match=re.escape("x must have the shape (batch, tokens, 32), found (3, 20, 5)")):
        layer(tokens()[..., :5])
    with pytest.raises(ValueError, match=re.escape("mask must have the shape (batch, tokens) = (3, 20)")):
        layer(tokens(), keep(19))
    with pytest.raises(ValueError, match=r"mask must be a torch.Tensor.* found ndarray"):
        layer(tokens(), keep(20).numpy())
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        layer(tokens(0))
