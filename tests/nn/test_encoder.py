"""An encoder over embeddings of one's own.

Shapes: B batch, N tokens, E width.
"""

import re
from typing import Any

import pytest
import torch
from small import small_config
from torch import Tensor

from nystromformer.config import NystromConfig
from nystromformer.model import Encoder as TextEncoder
from nystromformer.nn import Encoder, NystromAttention
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
    config = small_config(model__norm=norm, model__activation=activation).model
    torch.manual_seed(0)
    text = TextEncoder(config).eval()
    sizes = config.transformer_dim, config.num_layers, config.num_head
    options = {"hidden_dim": config.transformer_hidden_dim, "norm": norm, "activation": activation}
    ours = Encoder(*sizes, attention=config.attentions[0], **options).eval()
    ours.load_state_dict({name: w for name, w in text.state_dict().items() if not name.startswith("embeddings.")})
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
    with pytest.raises(ValueError, match='found "rotary": it rotates'):
        build(rotary=True, attention="synthesizer", num_landmarks=None, max_length=N)


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


def test_options() -> None:
    mixed = Encoder(E, 2, 4, attention=["softmax", NystromConfig(num_landmarks=5)])
    assert [type(layer.attention.core).__name__ for layer in mixed.layers] == ["SoftmaxAttention", "NystromAttention"]
    assert mixed.layers[1].attention.core.config.num_landmarks == 5
    assert mixed.layers[0].feed_forward.up.out_features == 4 * E
    dropping = build(dropout=0.5).train()
    assert not torch.equal(dropping(patches()), dropping(patches()))
    learned = Encoder(E, 2, 4, attention="linformer", projected_length=4, max_length=N)
    assert learned(patches()).shape == (B, N, E)
    with pytest.raises(ValueError, match="expected at most max_length = 20 tokens, found 21"):
        learned(patches(N + 1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 5}, "expected dim to be a multiple of heads, found dim = 32 and heads = 5"),
        ({"depth": 0, "dropout": 2.0}, "num_layers.*dropout_prob"),
        ({"norm": "both"}, "norm"),
        ({"reversible": True, "norm": "post"}, 'reversible.*expected norm "pre" with it'),
        ({"landmarks": "middle"}, "landmarks"),
        ({"attention": ["softmax"]}, "attn_type.*expected 2 items"),
        ({"attention": "linformer"}, "linformer learns weights for each position: expected max_length"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_cannot_be_built(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){words}"):
        Encoder(**{"dim": E, "depth": 2, "heads": 4, **options})


@pytest.mark.parametrize("x", [torch.ones(B, N), torch.ones(B, N, 5), torch.ones(B, N, E, dtype=torch.int64)])
def test_other_input_is_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match=re.escape("x must be floats of the shape (batch, tokens, 32)")):
        build()(x)
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        build()(patches(0))
