"""The parts of a network that config.json switches: which weights there are, and what each part computes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import PLAIN, tokens
from small import model_config as config
from torch import Tensor, nn
from torch.func import functional_call

from nystromformer.model import Encoder
from nystromformer.model.build import PretrainingModel
from nystromformer.model.layers import FeedForward
from nystromformer.model.norm import RMSNorm


def test_without_biases_the_vocabulary_alone_has_one() -> None:
    names = PretrainingModel(config(bias=False, norm="pre", embedding_dim=8), ["mlm"]).state_dict()
    assert [name for name in names if "bias" in name] == ["mlm.bias"]


def test_a_gated_block_multiplies_two_hidden_layers() -> None:
    block = FeedForward(config(feed_forward="glu", activation="silu", bias=False)).eval()
    x = torch.randn(3, 16)
    gate, factor = block.up.weight.chunk(2)
    one, other = (F.linear(x, weight) for weight in (gate, factor))
    torch.testing.assert_close(block(x), F.linear(one * torch.sigmoid(one) * other, block.down.weight))


def test_a_block_that_saves_memory_computes_the_same_with_dropout() -> None:
    changes = {"feed_forward": "glu", "hidden_dropout_prob": 0.5}
    plain, saved = FeedForward(config(**changes)), FeedForward(config(**changes, gelu_grad_checkpointing=True))
    saved.load_state_dict(plain.state_dict())
    results = []
    for block in (plain, saved):
        x = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        torch.manual_seed(2)
        out = block(x)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *block.parameters()])))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    norm = Encoder(config(norm_type="rms_norm", layer_norm_eps=1e-3)).embeddings.norm
    x = torch.randn(3, 16)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt())


@pytest.mark.parametrize("shape", [(7,), (2, 5, 33), (0, 4)], ids=str)
def test_rms_norms_gradients_are_torchs(shape: tuple[int, ...]) -> None:
    own, torchs = RMSNorm(shape[-1], 1e-3), nn.RMSNorm(shape[-1], 1e-3)
    weight, x, upstream = torch.randn(shape[-1]), torch.randn(shape), torch.randn(shape)
    results = []
    for norm in (own, torchs):
        norm.weight = nn.Parameter(weight.clone())
        given = x.clone().requires_grad_()
        out = norm(given)
        results.append((out, *torch.autograd.grad(out, [given, norm.weight], upstream)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_without_its_dense_layer_the_head_multiplies_by_the_word_embeddings_alone() -> None:
    model = PretrainingModel(config(head_transform=False), ["mlm"]).eval()
    nn.init.normal_(model.mlm.bias)
    positions = torch.tensor([[3, 9], [1, 4]])
    hidden = model.encoder(tokens(), positions_BK=positions)
    expected = hidden @ model.encoder.embeddings.word.weight.T + model.mlm.bias
    torch.testing.assert_close(model(tokens(), positions).mlm_BKV, expected)
    assert not [name for name in model.state_dict() if name.startswith("mlm.") and name != "mlm.bias"]


def test_depth_scales_the_last_maps_of_each_block_alone() -> None:
    def weights(**changes: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        return Encoder(config(num_layers=8, **changes)).state_dict()

    plain, scaled = weights(), weights(depth_scaled_init=True)
    for name, weight in plain.items():
        is_last = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
        torch.testing.assert_close(scaled[name], weight / 4 if is_last else weight)


@pytest.mark.parametrize("key", ["embedding_dropout_prob", "attention_dropout_prob", "hidden_dropout_prob"])
def test_each_dropout_is_at_its_place(key: str) -> None:
    encoder = Encoder(config(dropout_prob=0.0, **{key: 0.5}))
    places = {
        "embedding_dropout_prob": ["embeddings.dropout"],
        "attention_dropout_prob": ["layers.0.attention_dropout", "layers.1.attention_dropout"],
        "hidden_dropout_prob": ["layers.0.feed_forward.dropout", "layers.1.feed_forward.dropout"],
    }
    assert [name for name, module in encoder.named_modules() if getattr(module, "p", 0) > 0] == places[key]
    assert not torch.equal(encoder.train()(tokens()), encoder.train()(tokens()))
    assert torch.equal(encoder.eval()(tokens()), encoder.eval()(tokens()))


def test_the_local_theta_is_that_of_local_layers_alone() -> None:
    def out(attention: Any, **changes: Any) -> Tensor:
        torch.manual_seed(0)
        return Encoder(config(**PLAIN, attn_type=attention, positions="rotary", **changes)).eval()(tokens())

    local = {"name": "local", "block_size": 8}
    both = [local, "softmax"]
    assert not torch.allclose(out(both), out(both, rope_theta_local=50.0))
    torch.testing.assert_close(out([local, local], rope_theta=7.0), out([local, local], rope_theta_local=7.0))
    assert not torch.allclose(out(both, rope_theta_local=10_000.0, rope_theta=50.0), out(both))


@pytest.mark.parametrize(
    "changes",
    [
        {"gelu_grad_checkpointing": True},
        {"attention_grad_checkpointing": True, "attn_type": "conv_linformer", **PLAIN},
        {"reversible": True, "norm": "pre", "num_layers": 3},
    ],
    ids=str,
)
def test_weights_given_for_a_call_have_the_gradients_of_own_ones(changes: dict[str, Any]) -> None:
    def total(out: Tensor) -> Tensor:
        return (out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).square().sum()

    encoder = Encoder(config(dropout_prob=0.0, **changes)).double().train()
    own = dict(encoder.named_parameters())
    given = {name: weight.detach().clone().requires_grad_() for name, weight in own.items()}
    expected = torch.autograd.grad(total(encoder(tokens())), list(own.values()), allow_unused=True)
    for weight in own.values():
        weight.data.zero_()
    found = torch.autograd.grad(
        total(functional_call(encoder, given, (tokens(),))), list(given.values()), allow_unused=True
    )
    for name, one, other in zip(own, found, expected, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, msg=name)
