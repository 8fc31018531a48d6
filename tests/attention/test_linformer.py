"""Linformer's projections: whose they are, how long, and the public module beside it; its convolution by a shift."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv
from small import small_config

from nystromformer.attention import create_attention, reference
from nystromformer.attention.conv_linformer import ConvLinformerAttention
from nystromformer.attention.linformer import LinformerAttention
from nystromformer.model import count_parameters
from nystromformer.model.encoder import Encoder


def linformer(length: int = 64, **parameters: object) -> LinformerAttention:
    torch.manual_seed(1)
    sizes = {"num_heads": HEADS, "head_dim": DIM, "max_length": length}
    module = create_attention("linformer", **sizes, **{"projected_length": 6} | parameters)
    assert isinstance(module, LinformerAttention)
    return module


def test_longer_input_than_was_learned_is_refused() -> None:
    module = linformer(64)
    assert module(*qkv(1, 64)).shape == (1, HEADS, 64, DIM)
    with pytest.raises(ValueError, match=r"learned weights for 64 tokens .*, found 65"):
        module(*qkv(1, 65))
    with pytest.raises(ValueError, match="linformer learns weights for each position: expected max_length"):
        create_attention("linformer", num_heads=HEADS, head_dim=DIM)


def test_as_many_projected_tokens_as_there_are_can_be_exact() -> None:
    module = linformer(10, projected_length=10, sharing="layer")
    with torch.no_grad():
        for projection in (module.key_projection_GKL, module.value_projection_GKL):
            projection.copy_(torch.eye(10)[None])
    x = qkv(2, 10)
    torch.testing.assert_close(module(*x).double(), reference.softmax_attention(*x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "projections"),
    [
        ({"sharing": "head"}, 2 * 2 * HEADS),
        ({"sharing": "layer"}, 2 * 2),
        ({"sharing": "model"}, 2),
    ],
)
def test_who_shares_what(options: dict[str, object], projections: int) -> None:
    """Of two layers."""
    attention = {"name": "linformer", "projected_length": 6, **options}
    config = small_config(model__attn_type=attention, model__num_landmarks=None).model
    assert (config.num_layers, config.num_head) == (2, HEADS)
    encoder = Encoder(config)
    without = Encoder(small_config(model__attn_type="softmax", model__num_landmarks=None).model)
    assert count_parameters(encoder) - count_parameters(without) == projections * 6 * config.max_seq_len
    tokens = torch.randint(5, config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(0))
    encoder(tokens).sum().backward()
    cores = [layer.attention.core for layer in encoder.layers]
    is_shared = options["sharing"] == "model"
    assert (cores[0].key_projection_GKL is cores[1].key_projection_GKL) is is_shared
    twin = Encoder(config)
    twin.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(twin.eval()(tokens), encoder.eval()(tokens))


def test_the_public_module_agrees() -> None:
    peers = pytest.importorskip("linformer")
    peer = peers.LinformerSelfAttention(HEADS * DIM, 64, k=6, heads=HEADS)
    module = linformer(64, sharing="layer")
    x = torch.randn(2, 40, HEADS * DIM, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        module.key_projection_GKL.copy_(peer.proj_k.T[None])
        module.value_projection_GKL.copy_(peer.proj_v.T[None])
        q, k, v = (f(x).unflatten(2, (HEADS, DIM)).transpose(1, 2) for f in (peer.to_q, peer.to_k, peer.to_v))
        torch.testing.assert_close(peer.to_out(module(q, k, v).transpose(1, 2).flatten(2)), peer(x))


def test_a_shift_by_whole_pieces_changes_nothing_of_the_convolution() -> None:
    """What a learned matrix does not give."""
    module = create_attention("conv_linformer", num_heads=HEADS, head_dim=DIM, stride=4)
    assert isinstance(module, ConvLinformerAttention)
    x = [a.detach() for a in qkv(1, 24)]
    turned = [a.roll(8, dims=2) for a in x]
    torch.testing.assert_close(module(*turned), module(*x).roll(8, dims=2), rtol=1e-4, atol=1e-5)
    by_place = linformer(24)
    assert (by_place(*turned) - by_place(*x).roll(8, dims=2)).abs().max() > 0.05
