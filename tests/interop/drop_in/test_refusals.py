"""What registered attentions refuse, each with one sentence, and what the function makes of odd calls.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import re
from typing import Any

import pytest
import torch
from theirs import VOCABULARY, batch, build, hidden
from torch import Tensor, nn
from transformers import (
    AutoModel,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    PreTrainedConfig,
    T5Config,
    T5EncoderModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from nystromformer.config import NystromConfig
from nystromformer.interop.drop_in import REGISTERED, check, register

B, H, N, D = 2, 4, 10, 8


@pytest.fixture(autouse=True)
def registered() -> None:
    register(num_landmarks=16)


class Layer(nn.Module):
    """All that the function looks at."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in {"is_causal": False, **attributes}.items():
            setattr(self, name, value)


class CrossAttention(Layer):
    pass


def qkv(heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, H, N, D), torch.randn(B, heads, N, D), torch.randn(B, heads, N, D)


def attend(module: nn.Module, mask: Tensor | None = None, heads: int = H, **options: Any) -> Tensor:
    """(B, N, H, D)."""
    out, weights = REGISTERED["nystrom"].attend(module, *qkv(heads), mask, **options)
    assert weights is None
    return out


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(ValueError, match='cannot run attn_implementation="nystrom": ') as error:
        attend(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BertConfig(is_decoder=True), r"the model cannot run .*: it asks for a causal mask"),
        (GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY), "it asks for a causal mask"),
    ],
    ids=["a BERT as decoder", "GPT-2"],
)
def test_decoders(config: PreTrainedConfig, words: str) -> None:
    for key, value in {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}.items():
        setattr(config, key, value)
    model = AutoModel.from_config(config, attn_implementation="nystrom").eval()
    with pytest.raises(ValueError, match=words):
        model(torch.ones(1, 5, dtype=torch.int64))


def test_position_biases() -> None:
    config = T5Config(d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=48, vocab_size=VOCABULARY)
    config._attn_implementation = "nystrom"
    with pytest.raises(
        ValueError, match=r"T5Attention cannot run .*: it passes position_bias, which may change scores"
    ):
        T5EncoderModel(config).eval()(torch.ones(1, 5, dtype=torch.int64))


def test_a_model_that_never_calls_it() -> None:
    config = DebertaV2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=VOCABULARY
    )
    model = AutoModel.from_config(config, attn_implementation="nystrom")
    with pytest.raises(ValueError, match='DebertaV2Model with attn_implementation="nystrom" calls no registered'):
        check(model, model.dummy_inputs)


@pytest.mark.parametrize("attributes", [{"is_causal": True}, {"is_causal": True, "sliding_window": 4}])
def test_causal_layers(attributes: dict[str, Any]) -> None:
    window = attributes.get("sliding_window")
    assert "Layer cannot" in refused(Layer(**attributes), sliding_window=window)
    assert "it is causal" in refused(Layer(), is_causal=True)
    assert attend(Layer(is_causal=True), is_causal=False).shape == (B, N, H, D)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"softcap": 30.0}, "it passes softcap, which may change scores of pairs of tokens"),
        ({"s_aux": torch.ones(H)}, "it passes s_aux"),
        ({"cu_seq_lens_q": torch.tensor([0, 4, 10])}, "it passes cu_seq_lens_q"),
        ({"output_attentions": True}, "it passes output_attentions"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_arguments_that_change_the_scores(options: dict[str, Any], words: str) -> None:
    assert words in refused(Layer(), **options)
    off = dict.fromkeys(options)
    assert torch.equal(attend(Layer(), **off), attend(Layer(), position_ids=torch.arange(N), deterministic=True))


def test_cross_attention() -> None:
    q, k, v = qkv()
    with pytest.raises(ValueError, match="10 queries meet 7 keys of other tokens"):
        REGISTERED["nystrom"].attend(Layer(), q, k[:, :, :7], v[:, :, :7], None)
    assert "cross-attention" in refused(CrossAttention())
    assert "cross-attention" in refused(Layer(is_cross_attention=True))


def test_dropout_of_weights_is_refused_or_left_out() -> None:
    inputs, keep_BN = batch("bert")
    model = build("bert", "nystrom").train()
    with pytest.raises(ValueError, match=re.escape("it drops 0.1 of the weights")):
        hidden(model, inputs)
    register(num_landmarks=16, attention_dropout="leave_out")
    torch.manual_seed(1)
    trained = hidden(model, inputs)
    theirs = build("bert", "sdpa", attention_probs_dropout_prob=0.0).train()
    torch.manual_seed(1)
    torch.testing.assert_close(trained[keep_BN], hidden(theirs, inputs)[keep_BN], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="attention_dropout must be one of refuse, leave_out"):
        register(attention_dropout="perhaps")  # type: ignore[arg-type]


def test_masks_of_any_form_that_says_the_same_to_all_queries() -> None:
    keep_BN = torch.arange(N) < torch.tensor([[N], [6]])
    wanted = attend(Layer(), keep_BN)
    assert not wanted[1, 6:].any()
    lowest = torch.zeros(B, 1, 1, N).masked_fill(~keep_BN[:, None, None], torch.finfo(torch.float32).min)
    for mask in (keep_BN[:, None, None], keep_BN[:, None, None].expand(B, H, N, N), lowest, keep_BN.long()):
        assert torch.equal(attend(Layer(), mask), wanted)


def test_masks_that_cannot_be_applied() -> None:
    assert "may differ from query to query" in refused(Layer(), torch.ones(B, 1, N, N, dtype=torch.bool))
    assert "pass one of the shape (batch, tokens)" in refused(Layer(), torch.ones(B, N, N, dtype=torch.bool))
    with pytest.raises(ValueError, match="biases of the scores cannot be added"):
        attend(Layer(), torch.full((B, 1, 1, N), -0.5))


@pytest.mark.parametrize("scaling", [None, 1.0, D**-0.5, 0.11])
@pytest.mark.parametrize("heads", [H, 2, 1])
def test_scales_and_grouped_heads_are_sdpas(scaling: float | None, heads: int) -> None:
    layer = Layer(num_key_value_groups=H // heads)
    keep_BN = torch.arange(N) < torch.tensor([[N], [6]])
    theirs, _ = sdpa_attention_forward(layer, *qkv(heads), keep_BN[:, None, None], scaling=scaling)
    ours = attend(layer, keep_BN, heads, scaling=scaling)
    torch.testing.assert_close(ours[keep_BN], theirs[keep_BN], rtol=1e-5, atol=1e-5)


def test_what_is_registered() -> None:
    found = register()
    assert {"nystrom", "softmax", "linear", "longformer", "performer"} <= set(found)
    assert not {"reformer", "synthesizer", "linformer", "conv_linformer"} & set(found)
    assert REGISTERED["nystrom"].config == NystromConfig()
    assert register(num_landmarks=7, landmarks="strided") == found
    assert REGISTERED["nystrom"].config == NystromConfig(num_landmarks=7, landmarks="strided")
    assert register(NystromConfig(num_landmarks=9), name="nine") == ("nine",)
    assert REGISTERED["nine"].config == NystromConfig(num_landmarks=9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_landmark": 3}, "num_landmark"),
        ({"attention": "reformer"}, "reformer cannot replace a trained softmax: it makes its keys"),
        ({"attention": "synthesizer"}, "it does not look at the keys"),
        ({"attention": "linformer"}, "which are learned"),
        ({"conv_kernel_size": 33}, "its convolution of 33 taps is learned"),
    ],
    ids=lambda value: " ".join(map(str, value.values()))[:40] if isinstance(value, dict) else None,
)
def test_what_cannot_be_registered(arguments: dict[str, Any], words: str) -> None:
    before = dict(REGISTERED)
    with pytest.raises(ValueError, match=re.escape(words)):
        register(**arguments)
    assert before == REGISTERED
