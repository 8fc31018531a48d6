"""Linear attention where its features are small: precision, and sums that underflow."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv

from nystromformer.attention import create_attention, linear, reference


@pytest.mark.parametrize("shift", [0.0, 8.0, 16.0, 30.0])
def test_small_features_keep_their_digits(shift: float) -> None:
    q, k, v = qkv(2, 30, scale=1.0)
    k = k - shift
    out = create_attention("linear", num_heads=HEADS, head_dim=DIM)(q, k, v)
    expected = reference.linear_attention(q, k, v)
    assert (out - expected).abs().max() < 1e-5 * expected.abs().max()
    wanted = torch.autograd.grad(expected.square().sum(), (q, v))
    for gradient, other in zip(torch.autograd.grad(out.square().sum(), (q, v)), wanted, strict=True):
        assert (gradient - other).abs().max() < 1e-4 * other.abs().max()


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_where_all_weights_underflow_there_is_nothing_and_no_gradient(name: str) -> None:
    q, k, v = qkv(1, 12, scale=1.0)
    with torch.no_grad():
        q[:, :, 3] = -200.0
        if name == "performer":
            q.mul_(40)
            k.copy_(-q)
    module = create_attention(name, num_heads=HEADS, head_dim=DIM)
    out = module(q, k, v)
    assert out.isfinite().all()
    if name == "linear":
        assert (out[:, :, 3] == 0).all()
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("transposed", [False, True])
def test_pieces_of_long_input_are_the_whole(monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    """The features of long input are made piece by piece: the same bits, in place of each number, and its gradient."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x for x in qkv(2, 50, scale=4.0))
    module = create_attention("linear", num_heads=HEADS, head_dim=DIM)
    whole = module(q, k, v)
    gradients = torch.autograd.grad(whole.square().sum(), (q, k, v))
    monkeypatch.setattr(linear, "_FEW", 100)
    monkeypatch.setattr(linear, "_PIECE", 64)
    assert torch.equal(module(q, k, v), whole)
    for gradient, other in zip(torch.autograd.grad(module(q, k, v).square().sum(), (q, k, v)), gradients, strict=True):
        assert torch.equal(gradient, other)
    with torch.no_grad():
        assert torch.allclose(module(q, k, v), whole)
