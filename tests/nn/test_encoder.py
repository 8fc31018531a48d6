"""An encoder over embeddings of one's own.

Shapes: B batch, N tokens, K of their positions, E width.
"""

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig, NystromConfig, SoftmaxConfig
from nystromformer.model import Encoder as TextEncoder
from nystromformer.nn import Encoder, NystromAttention, replace_attention
from nystromformer.nn.multihead import MultiheadAttention

B, N, E = 3, 20, 32
KEEP_BN = torch.arange(N) < torch.tensor([[N], [11], [1]])


def build(**options: Any) -> Encoder:
    torch.manual_seed(0)
    options = {"depth": 2, "heads": 4, "num_landmarks": 8, **options}
    if options["num_landmarks"] is None:
        del options["num_landmarks"]
    return Encoder(E, **options).eval()


def patches(length: int = N) -> Tensor:
    return torch.randn(B, length, E, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_it_is_the_projects_encoder_without_embeddings(norm: str, activation: str) -> None:
    config = ModelConfig(
        vocab_size=50,
        max_seq_len=40,
        embedding_dim=E,
        transformer_dim=E,
        num_layers=2,
        transformer_hidden_dim=48,
        num_head=4,
        head_dim=8,
        norm=norm,
        activation=activation,
        attn_type="nystrom",
        num_landmarks=8,
        conv_kernel_size=5,
        dropout_prob=0.0,
    )
    torch.manual_seed(0)
    text = TextEncoder(config).eval()
    ours = build(norm=norm, activation=activation, hidden_dim=48, conv_kernel_size=5)
    weights = text.state_dict()
    ours.load_state_dict({name: w for name, w in weights.items() if not name.startswith("embeddings.")})
    tokens_BN = torch.randint(50, (B, N), generator=torch.Generator().manual_seed(0))
    out = ours(text.embeddings(tokens_BN), KEEP_BN)
    assert torch.equal(out[KEEP_BN], text(tokens_BN, KEEP_BN)[KEEP_BN])


def test_rotary_tells_places_apart_where_softmax_does_not() -> None:
    options = {"attention": "softmax", "num_landmarks": None}
    x_BNE, order = patches(), torch.randperm(N, generator=torch.Generator().manual_seed(1))
    plain, rotary = build(**options), build(rotary=True, **options)
    assert plain.state_dict().keys() == rotary.state_dict().keys()
    torch.testing.assert_close(plain(x_BNE[:, order]), plain(x_BNE)[:, order])
    assert not torch.allclose(rotary(x_BNE[:, order]), rotary(x_BNE)[:, order], atol=1e-3)
    with pytest.raises(ValueError, match="rotary: expected"):
        build(rotary=True, attention="synthesizer", num_landmarks=None, max_length=N)


def test_few_tokens_get_softmax() -> None:
    ours, exact = build(num_landmarks=N), build(num_landmarks=None, attention=SoftmaxConfig())
    exact.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(patches(), KEEP_BN), exact(patches(), KEEP_BN), rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing_and_gets_no_gradient() -> None:
    encoder, x_BNE = build(conv_kernel_size=3), patches().requires_grad_()
    out = encoder(x_BNE, KEEP_BN)
    padded = encoder(F.pad(patches(), (0, 0, 0, 7), value=50.0), F.pad(KEEP_BN, (0, 7)))[:, :N]
    torch.testing.assert_close(padded[KEEP_BN], out[KEEP_BN], rtol=1e-5, atol=1e-5)
    (out[KEEP_BN] * torch.linspace(-1, 1, E)).sum().backward()
    assert x_BNE.grad is not None
    assert not x_BNE.grad[~KEEP_BN].any()
    assert x_BNE.grad[KEEP_BN].any(1).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    assert torch.equal(encoder(x_BNE, AttentionMask(KEEP_BN)), out)


@pytest.mark.parametrize("content", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["encoder", "pre", "layer", "multihead"])
def test_whatever_stands_in_the_padding_gradients_are_the_same(kind: str, content: float) -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(E, 4, batch_first=True)
    module = {
        "encoder": lambda: build(conv_kernel_size=3),
        "pre": lambda: build(norm="pre", reversible=True),
        "layer": lambda: NystromAttention(E, 4, num_landmarks=8),
        "multihead": lambda: MultiheadAttention(layer, NystromConfig(num_landmarks=8)),
    }[kind]()
    results = []
    for value in (0.0, content):
        x_BNE = torch.where(KEEP_BN[..., None], patches(), value).requires_grad_()
        call = (x_BNE, x_BNE, x_BNE, ~KEEP_BN, False) if kind == "multihead" else (x_BNE, KEEP_BN)
        out = module(*call)
        out_BNE = out[0] if kind == "multihead" else out
        results.append(
            [out_BNE[KEEP_BN], *torch.autograd.grad(out_BNE[KEEP_BN].square().sum(), [x_BNE, *module.parameters()])]
        )
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert not results[1][1][~KEEP_BN].any()


def test_vectors_at_positions_alone() -> None:
    encoder, positions_BK = build(), torch.tensor([[0, 7], [10, 2], [0, 0]])
    wanted = encoder(patches(), KEEP_BN).gather(1, positions_BK[:, :, None].expand(-1, -1, E))
    torch.testing.assert_close(encoder(patches(), KEEP_BN, positions_BK), wanted, rtol=1e-5, atol=1e-5)


def test_savings_change_nothing() -> None:
    plain, chunked = build(reversible=True), build(reversible=True, feed_forward_chunk=7)
    grads = []
    for encoder in (plain, chunked):
        encoder.train()(patches(), KEEP_BN)[KEEP_BN].square().sum().backward()
        grads.append([p.grad for p in encoder.parameters()])
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain(patches()), build()(patches()), atol=1e-3)


def test_options() -> None:
    mixed = Encoder(E, 2, 4, attention=["softmax", NystromConfig(num_landmarks=5)])
    assert [type(layer.attention.core).__name__ for layer in mixed.layers] == ["SoftmaxAttention", "NystromAttention"]
    assert mixed.layers[1].attention.core.config.num_landmarks == 5
    assert mixed.layers[0].feed_forward.up.out_features == 4 * E
    assert build(layer_norm_eps=1e-3).layers[0].attention_norm.eps == 1e-3
    dropping = build(dropout=0.5).train()
    assert not torch.equal(dropping(patches()), dropping(patches()))
    learned = Encoder(E, 2, 4, attention="linformer", projected_length=4, max_length=N)
    assert learned(patches()).shape == (B, N, E)
    assert Encoder(E, 1, 4, dropout=0).layers[0].dropout.p == 0
    with pytest.raises(ValueError, match="expected at most max_length = 20 tokens, found 21"):
        learned(patches(N + 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 5}, "expected dim to be a multiple of heads, found dim = 32 and heads = 5"),
        ({"depth": 0}, "depth: "),
        ({"dropout": 2.0}, "dropout: "),
        ({"norm": "both"}, "norm: "),
        ({"hidden_dim": 0}, "hidden_dim: "),
        ({"reversible": True, "norm": "post"}, 'reversible: expected norm "pre" with it'),
        ({"attention": "nystrm"}, 'unknown attention "nystrm"'),
        ({"landmarks": "middle"}, "landmarks"),
        ({"attention": ["softmax", "nystrom"]}, "parameters can be given for one attention"),
        ({"attention": NystromConfig()}, "the config already contains the parameters"),
        ({"attention": ["softmax"], "num_landmarks": None}, "attention: expected 2 items"),
        ({"attention": "linformer", "num_landmarks": None}, "linformer learns weights for each position"),
        ({"max_length": 30}, "max_length = 30 has no effect"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_built(options: dict[str, Any], words: str) -> None:
    arguments = {"dim": E, "depth": 2, "heads": 4, "num_landmarks": 8, **options}
    arguments = {name: value for name, value in arguments.items() if name != "num_landmarks" or value is not None}
    with pytest.raises(ValueError, match=re.escape(words)):
        Encoder(**arguments)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)depth: .*dropout: "):
        Encoder(E, 0, 4, dropout=-1.0)


@pytest.mark.parametrize("x", [torch.ones(B, N), torch.ones(B, N, 5), torch.ones(B, N, E, dtype=torch.int64)])
def test_other_input_is_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match=re.escape("x must be floats of the shape (batch, tokens, 32)")):
        build()(x)


def test_a_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("mask must have the shape (batch, tokens) = (3, 20)")):
        build()(patches(), KEEP_BN[:, 1:])


def test_fixed_segments_of_any_number() -> None:
    encoder = build(num_landmarks=48, segments="padded")
    assert encoder(patches(96)).shape == (B, 96, E)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (torch.tensor([[N]] * B), f"expected 0 to {N - 1} in rows of {N} tokens, found {N}"),
        (torch.tensor([[0, -1]] * B), f"expected 0 to {N - 1} in rows of {N} tokens, found -1"),
        (KEEP_BN, "expected numbers of tokens, int64, found a mask of bool"),
    ],
    ids=["behind", "before", "a mask"],
)
def test_positions_that_a_row_does_not_have_are_refused(positions: Tensor, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        build()(patches(), positions_BK=positions)


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"reversible": True}, {"feed_forward_chunk": 7}], ids=str)
def test_torch_func_differentiates_a_layer_in_training(options: dict[str, Any]) -> None:
    encoder, x = build(**options).train(), patches().requires_grad_()
    torch.manual_seed(1)
    found = torch.func.grad(lambda x: encoder(x).square().sum())(x.detach())
    assert found.isfinite().all()
    if "dropout" not in options:  # which draws other numbers
        (expected,) = torch.autograd.grad(encoder(x).square().sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_replaced_layer_draws_its_weights_anew_as_torch_does() -> None:
    theirs = torch.nn.MultiheadAttention(E, 4)
    ours = replace_attention(copy.deepcopy(theirs), num_landmarks=4)
    for layer in (theirs, ours):
        torch.manual_seed(3)
        layer._reset_parameters()  # type: ignore[operator]
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in ours.state_dict().items())


@pytest.mark.parametrize("attention", [[{"name": "nystrom"}], {"name": "nystrom"}], ids=str)
def test_attentions_that_are_none(attention: Any) -> None:
    with pytest.raises(ValueError, match=r"attention: expected a name.* a list of them, found \{'name': 'nystrom'\}"):
        Encoder(E, depth=1, heads=4, attention=attention)
