"""Reversible layers: the same gradients from less memory."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from largest import bytes_for_backward
from small import LENGTH, PLAIN, SOFTMAX, model_config, tokens
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model import Encoder, encoder
from nystromformer.model.layers import Layer, at_positions
from nystromformer.model.reversible import run_reversibly
from nystromformer.model.rotary import Rotation

ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {"attn_type": "nystrom"},
    "softmax": SOFTMAX,
    "linformer": {"attn_type": {"name": "linformer", "projected_length": 6, "sharing": "model"}, **PLAIN},
    "performer": {"attn_type": {"name": "performer", "num_features": 12}, **PLAIN},
    "reformer": {"attn_type": {"name": "reformer", "chunk_length": 6}, **PLAIN},
    "softmax, rotary": {**SOFTMAX, "positions": "rotary"},
    "switches": {
        "attn_type": ["softmax", {"name": "local", "block_size": 4}, "softmax"],
        "positions": "rotary",
        "rope_theta": 1000.0,
        "rope_theta_local": 100.0,
        "norm_type": "rms_norm",
        "skip_first_prenorm": True,
        "feed_forward": "glu",
        "bias": False,
        "hidden_dropout_prob": 0.2,
        "attention_dropout_prob": 0.3,
        **PLAIN,
    },
    "reformer, rotary": {"attn_type": {"name": "reformer", "chunk_length": 6}, "positions": "rotary", **PLAIN},
}


def config(**changes: object) -> ModelConfig:
    return model_config(**{"norm": "pre", "reversible": True, "num_layers": 3, **changes})


def plainly(
    layers: Sequence[Layer],
    x_BNE: Tensor,
    mask: AttentionMask | None,
    positions_BK: Tensor | None,
    rotations: Sequence[Rotation | None],
) -> Tensor:
    """The same network, whose every activation is stored."""
    x1, x2 = x_BNE, x_BNE
    for layer, rotation in zip(layers, rotations, strict=True):
        at = positions_BK if layer is layers[-1] else None
        attended = layer.attention(layer.attention_norm(x2), mask, at, rotation)
        x1 = at_positions(x1, at) + layer.attention_dropout(attended)
        x2 = at_positions(x2, at) + layer.dropout(layer.feed_forward(layer.feed_forward_norm(x1)))
    return (x1 + x2) / 2


def results(model: Encoder, run: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> list[Tensor]:
    monkeypatch.setattr(encoder, "run_reversibly", run)
    torch.manual_seed(5)
    out = model(tokens(), **inputs)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(6)).to(out.dtype)
    return [out, *torch.autograd.grad(out, list(model.parameters()), upstream), torch.rand(1)]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("training", [True, False], ids=["dropout", "eval"])
@pytest.mark.parametrize("wanted", ["all", "some"])
def test_gradients_are_those_of_stored_activations(
    attention: str, training: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Encoder(config(**ATTENTIONS[attention])).double().train(training)
    inputs = {
        "mask": torch.arange(LENGTH) < torch.tensor([[LENGTH], [20]]),
        "positions_BK": torch.tensor([[0, 5, 5], [7, 0, 1]]) if wanted == "some" else None,
    }
    expected = results(model, plainly, monkeypatch, **inputs)
    for result, right in zip(results(model, run_reversibly, monkeypatch, **inputs), expected, strict=True):
        torch.testing.assert_close(result, right, rtol=1e-9, atol=1e-11)


def test_autocast_is_that_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Encoder(config(**SOFTMAX)).train()

    def under_autocast(run: Callable[..., Tensor], backward_too: bool = False) -> list[Tensor]:
        monkeypatch.setattr(encoder, "run_reversibly", run)
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(tokens())
            if backward_too:
                return list(torch.autograd.grad(out.square().sum(), list(model.parameters())))
        return list(torch.autograd.grad(out.square().sum(), list(model.parameters())))

    expected = under_autocast(plainly)
    for backward_too in (False, True):
        for result, right in zip(under_autocast(run_reversibly, backward_too), expected, strict=True):
            assert (result - right).norm() < 0.02 * right.norm() + 1e-3


def saved_bytes(model: torch.nn.Module) -> int:
    """What a forward pass saves for its backward, each memory once, weights excluded."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = bytes_for_backward(lambda: model(tokens()))
    return sum(size for address, size in sizes.items() if address not in weights)


@pytest.mark.parametrize("attention", ["softmax", "reformer"])
def test_what_is_saved_does_not_grow_with_the_layers(attention: str) -> None:
    def saved(layers: int, reversible: bool) -> int:
        return saved_bytes(Encoder(config(num_layers=layers, reversible=reversible, **ATTENTIONS[attention])).train())

    assert saved(12, True) == saved(2, True)
    assert saved(12, False) > 4 * saved(2, False)
    assert saved(12, True) < 0.3 * saved(12, False)


def test_decisions_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token between two buckets must not change sides because its vector was restored up to rounding."""
    from nystromformer.attention import reformer

    calls = []
    hashed = reformer.buckets_of
    monkeypatch.setattr(reformer, "buckets_of", lambda *given: (calls.append(0), hashed(*given))[1])
    model = Encoder(config(**ATTENTIONS["reformer"])).train()
    model(tokens()).sum().backward()
    assert len(calls) == 3
