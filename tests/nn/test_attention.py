"""Self-attention with projections of its own; and the weights of nystrom-attention in it.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width.
"""

import importlib.util
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nystromformer.attention import AttentionMask
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
    assert NystromAttention(E, H, attention="synthesizer", kind="random", max_length=40).qkv.out_features == E


def test_options() -> None:
    layer = NystromAttention(E, 3, 5, qkv_bias=False, attention=NystromConfig(num_landmarks=7, conv_kernel_size=3))
    assert layer.qkv.weight.shape == (3 * 15, E)
    assert layer.qkv.bias is None
    assert layer.core.config.num_landmarks == 7
    assert layer(tokens()).shape == (B, 20, E)
    assert {"qkv.weight", "out.weight", "out.bias", "core.skip.weight"} == set(layer.state_dict())
    dropped = NystromAttention(E, H, dropout=0.5)(tokens())
    assert 0.4 < float((dropped == 0).float().mean()) < 0.6
    shared = AttentionMask(keep(20))
    layer = NystromAttention(E, H, num_landmarks=M)
    assert torch.equal(layer(tokens(), shared), layer(tokens(), shared.keep_BN))
    assert "dim=32" in repr(layer)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 30, "heads": 4}, "expected dim to be a multiple of heads, found dim = 30 and heads = 4"),
        ({"dim": 32, "heads": 0}, "expected dim to be a multiple of heads"),
        ({"attention": "nystrm"}, 'unknown attention "nystrm"'),
        ({"landmark": 3}, "landmark"),
        ({"attention": "linformer"}, "linformer learns weights for each position: expected max_length"),
        ({"max_length": 99}, "max_length = 99 has no effect: nystrom takes input of any length"),
        ({"attention": "linformer", "max_length": 0}, "max_length must be at least 1, found 0"),
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


# --- nystrom-attention's module ---


def theirs(heads: int = H, head_dim: int = 6, taps: int | None = 5) -> dict[str, Tensor]:
    """The state dict of its module."""
    generator = torch.Generator().manual_seed(heads)
    inner = heads * head_dim
    shapes = {"to_qkv.weight": (3 * inner, E), "to_out.0.weight": (E, inner), "to_out.0.bias": (E,)}
    if taps is not None:
        shapes["res_conv.weight"] = (heads, 1, taps, 1)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def their_formula(
    weights: dict[str, Tensor], x_BNE: Tensor, landmarks: int, heads: int = H, iterations: int = 6
) -> Tensor:
    """What its module computes without a mask, written plainly, in float64."""
    w = {name: weight.double() for name, weight in weights.items()}
    length = x_BNE.shape[1]
    x = F.pad(x_BNE.double(), (0, 0, -length % landmarks, 0))
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (x @ w["to_qkv.weight"].T).chunk(3, dim=2))
    q = q * q.shape[3] ** -0.5
    q_means, k_means = (part.unflatten(2, (landmarks, -1)).mean(3) for part in (q, k))
    first, middle, last = (a @ b.mT for a, b in ((q, k_means), (q_means, k_means), (q_means, k)))
    first, middle, last = (scores.softmax(-1) for scores in (first, middle, last))
    z = middle.mT / (middle.sum(-1).max() * middle.sum(-2).max())
    eye = torch.eye(landmarks, dtype=torch.float64)
    for _ in range(iterations):
        az = middle @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    out = first @ z @ (last @ v)
    if "res_conv.weight" in w:
        out = out + F.conv2d(v, w["res_conv.weight"], padding=(w["res_conv.weight"].shape[2] // 2, 0), groups=heads)
    out = out.transpose(1, 2).flatten(2) @ w["to_out.0.weight"].T + w["to_out.0.bias"]
    return out[:, -length:].float()


@pytest.mark.parametrize("taps", [5, None])
@pytest.mark.parametrize("iterations", [6, 3])
def test_the_packages_weights_give_its_output(taps: int | None, iterations: int) -> None:
    weights, x_BNE = theirs(taps=taps), tokens(5 * M)
    settings = {"num_landmarks": M, "pinv_iterations": iterations}
    layer = NystromAttention.from_lucidrains(weights, H, **settings)
    expected = their_formula(weights, x_BNE, M, iterations=iterations)
    torch.testing.assert_close(layer(x_BNE), expected, rtol=1e-5, atol=1e-5)
    own_start = NystromAttention.from_lucidrains(weights, H, **settings, pinv_start="matrix")
    assert not torch.allclose(own_start(x_BNE), expected, rtol=1e-4, atol=1e-4)


def test_where_it_differs_from_the_package() -> None:
    weights = theirs()
    layer = NystromAttention.from_lucidrains(weights, num_landmarks=M)
    ragged, short = tokens(5 * M + 3), tokens(M)
    assert not torch.allclose(layer(ragged), their_formula(weights, ragged, M), rtol=1e-2, atol=1e-2)
    assert not torch.allclose(layer(short), their_formula(weights, short, M), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(importlib.util.find_spec("nystrom_attention") is None, reason="needs nystrom-attention")
@pytest.mark.parametrize("residual", [True, False])
def test_beside_the_package_itself(residual: bool) -> None:
    package = importlib.import_module("nystrom_attention")
    torch.manual_seed(0)
    module = spread(package.NystromAttention(E, 6, H, num_landmarks=M, residual=residual, residual_conv_kernel=5))
    layer = NystromAttention.from_lucidrains(module.state_dict(), H, num_landmarks=M)
    x_BNE = tokens(5 * M)
    torch.testing.assert_close(layer(x_BNE), module(x_BNE), rtol=1e-5, atol=1e-5)
    plain = their_formula(dict(module.state_dict()), tokens(5 * M + 3), M)
    torch.testing.assert_close(module(tokens(5 * M + 3)), plain, rtol=1e-5, atol=1e-5)


def test_its_defaults_and_precision() -> None:
    layer = NystromAttention.from_lucidrains({name: weight.double() for name, weight in theirs().items()})
    assert (layer.heads, layer.head_dim, layer.core.config.num_landmarks) == (H, 6, 256)
    assert layer.core.config.pinv_start == "batch"
    assert layer.out.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "heads", "words"),
    [
        ({"to_qkv.weight": None}, None, "missing: to_qkv.weight; unknown: none"),
        ({"norm.weight": torch.ones(E)}, None, "missing: none; unknown: norm.weight"),
        ({"res_conv.weight": None}, None, "the weights do not show the number of heads"),
        ({}, 3, "expected heads = 4, the filters of res_conv.weight, found 3"),
        ({"res_conv.weight": None}, 5, "do not fit 5 heads"),
        ({"res_conv.weight": None}, 0, "do not fit 0 heads"),
        ({"to_out.0.weight": torch.ones(E, 5)}, None, "do not fit 4 heads"),
        ({"res_conv.weight": torch.ones(H, 1, 4, 1)}, None, "conv_kernel_size"),
    ],
    ids=["missing", "unknown", "no heads", "other heads", "undivided", "none", "output", "even kernel"],
)
def test_weights_that_do_not_fit(change: dict[str, Tensor | None], heads: int | None, words: str) -> None:
    weights = {name: weight for name, weight in {**theirs(), **change}.items() if weight is not None}
    with pytest.raises(ValueError, match=re.escape(words)):
        NystromAttention.from_lucidrains(weights, heads)
