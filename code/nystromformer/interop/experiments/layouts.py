"""In which of transformers' forms a model can be stored, so that it computes the same there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, NystromConfig, SoftmaxConfig
from nystromformer.config.attention import AttentionConfig
from nystromformer.config.attention.longformer import LongformerConfig
from nystromformer.errors import UserError
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.interop.formats import modernbert
from nystromformer.interop.formats.names import BERT, MODERNBERT, NYSTROMFORMER, Names

Code = Literal["auto", "transformers", "file"]
CODES = ("auto", "transformers", "file")
MODULE_FILE = "modeling_nystrom_encoder.py"
_POSITIONS = "encoder.embeddings.position.weight"
_TYPES, _WORDS = "encoder.embeddings.sentence_type.weight", "encoder.embeddings.word.weight"
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
_THEIR_OFFSET = 2
"""Of the positions in transformers' Nystromformer."""


@dataclass(frozen=True)
class Layout:
    """A config.json of transformers', the weights by its names, and for what input it computes the same."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    with_file: bool
    """Whether a file of code lies beside it, which `trust_remote_code` runs."""
    same: str
    """A sentence."""


def lay_out(opened: Opened, code: Code) -> Layout:
    """The form of a model.

    Args:
        code: "transformers": its own modules, wherever one computes the same on rows without padding; "file": a file of
            code beside the weights; "auto": transformers' own where it computes the same on all that the model takes,
            or the model's config is to compute what transformers does; else the file.

    Raises:
        UserError: no form computes the same; says why.
    """
    config = opened.config
    why_not: list[str] = []
    if code != "file":
        for why, layout in (
            (_why_not_bert, _bert),
            (_why_not_modernbert, _modernbert),
            (_why_not_nystromformer, _nystromformer),
        ):
            if (reason := why(opened)) is not None:
                why_not.append(reason)
            elif layout is not _nystromformer or code == "transformers" or _is_compatible(config.attentions[0]):
                return layout(opened)
    if code == "transformers":
        lines = "".join(f"\n  {reason}" for reason in why_not)
        raise UserError(f"{opened.path}: no module of transformers computes the same:{lines}\nLeave out --code.")
    if (reason := _why_no_file(config)) is not None:
        raise UserError(f"{opened.path}: cannot be exported for transformers: {reason}")
    return _file(opened)


def _is_compatible(attention: AttentionConfig) -> bool:
    """Whether an attention is told to compute what transformers' Nystromformer computes."""
    return isinstance(attention, NystromConfig) and attention.segments == "padded_unmasked"


def _why_not_bert(opened: Opened) -> str | None:
    config = opened.config
    others = [attention for attention in config.attentions if not isinstance(attention, SoftmaxConfig)]
    if others:
        return f"BERT has softmax attention, the model {others[0].name}"
    if any(attention.conv_kernel_size or attention.ignore_mask for attention in config.attentions):
        return "BERT's attention has no convolution and goes by the mask"
    if opened.labels is not None and opened.between != "tanh":
        return f"BERT's classification has tanh, the model's {opened.between}"
    return _why_not_berts_layers(opened)


def _why_not_nystromformer(opened: Opened) -> str | None:
    config, first = opened.config, opened.config.attentions[0]
    if any(attention != first for attention in config.attentions):
        return "transformers' Nystromformer has one attention for all layers"
    if isinstance(first, SoftmaxConfig):
        if first.ignore_mask:
            return "transformers' Nystromformer goes by the mask"
    elif not isinstance(first, NystromConfig):
        return f"transformers' Nystromformer has Nyström and softmax attention, the model {first.name}"
    elif first.segments != "padded_unmasked" or first.pinv_start != "batch" or first.pinv_iterations != 6:
        return (
            "transformers' Nystromformer has fixed segments over the padded length (segments padded_unmasked), one "
            "start of the inverse for the whole batch (pinv_start batch) and 6 iterations"
        )
    if opened.labels is not None and opened.between != config.activation:
        return f"its classification has the layers' activation, the model's {opened.between}"
    return _why_not_berts_layers(opened)


def _why_not_berts_layers(opened: Opened) -> str | None:
    config = opened.config
    wanted: dict[str, object] = {
        "norm": "post",
        "norm_type": "layer_norm",
        "embedding_norm": True,
        "feed_forward": "mlp",
        "bias": True,
        "positions": "learned",
        "reversible": False,
    }
    wanted |= {"head_transform": True} if opened.labels is None else {"pooling": "first"}
    if (differing := _first_unlike(config, wanted)) is not None:
        return differing
    if config.embedding_dim != config.transformer_dim:
        return "its embeddings have the layers' width, without a projection"
    return None


def _first_unlike(config: ModelConfig, wanted: Mapping[str, object]) -> str | None:
    for key, value in wanted.items():
        if getattr(config, key) != value:
            return f"its layers have {key} {value!r}, the model {getattr(config, key)!r}"
    return None


def _why_not_modernbert(opened: Opened) -> str | None:
    config = opened.config
    if opened.labels is not None:
        return "ModernBERT's classification has a norm, the model's has none"
    for attention in config.attentions:
        if attention != SoftmaxConfig() and attention != _window_of(attention):
            return f"ModernBERT has softmax attention and sliding windows, the model {attention.name}, or more to it"
    if len({attention.window for attention in config.attentions if isinstance(attention, LongformerConfig)}) > 1:
        return "ModernBERT's windows are all of one width"
    if config.num_sen_type > 1:
        return f"ModernBERT has no types of sentences, the model {config.num_sen_type}"
    wanted = {
        "norm": "pre",
        "norm_type": "layer_norm",
        "embedding_norm": True,
        "skip_first_prenorm": True,
        "feed_forward": "glu",
        "head_transform": True,
        "positions": "rotary",
        "reversible": False,
    }
    reason = _first_unlike(config, wanted)
    if reason is None and config.embedding_dim != config.transformer_dim:
        reason = "its embeddings have the layers' width, without a projection"
    return None if reason is None else f"ModernBERT: {reason}"


def _window_of(attention: AttentionConfig) -> AttentionConfig | None:
    """A sliding window as wide as an attention's, and nothing else; None where it has none."""
    if not isinstance(attention, LongformerConfig):
        return None
    # How many tokens a task may mark means nothing where none does.
    kept = {"window": attention.window, "global_capacity": attention.global_capacity}
    return LongformerConfig(num_global_tokens=0, **kept)


def _why_no_file(config: ModelConfig) -> str | None:
    if config.reversible:
        return "reversible layers are another network than the exported file's"
    for number, attention in enumerate(config.attentions):
        if attention.num_projections < 3:
            return (
                f"layer {number} has {attention.name} attention; the exported file projects queries, keys and values, "
                "each by itself"
            )
        unlike = {"ignore_mask": attention.ignore_mask}
        if isinstance(attention, NystromConfig):
            unlike["segments"] = attention.segments != "valid"
            unlike["landmarks"] = attention.landmarks == "kmeans"
            unlike["pinv_ridge"] = attention.pinv_ridge is not None
            unlike["pinv_iterations"] = attention.pinv_iterations > 12  # these are in float64, the file's in float32
        for key in (key for key, is_unlike in unlike.items() if is_unlike):
            return (
                f"layer {number} has {key} {json.dumps(getattr(attention, key))}, which the exported file has not: set "
                "another in config.json's attn_type, or export to onnx or torch"
            )
    return None


def _common(opened: Opened) -> dict[str, Any]:
    """Keys that all of transformers' configs have."""
    config = opened.config
    keys: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "type_vocab_size": config.num_sen_type,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.transformer_dim,
        "intermediate_size": config.transformer_hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_head,
        "layer_norm_eps": config.layer_norm_eps,
        "dtype": "float32",
    }
    if opened.labels is not None:
        keys["id2label"] = {str(number): label for number, label in enumerate(opened.labels)}
        keys["label2id"] = {label: number for number, label in enumerate(opened.labels)}
        keys["problem_type"] = opened.problem
    return keys


def _name_of_head(opened: Opened) -> str:
    return "ForMaskedLM" if opened.labels is None else "ForSequenceClassification"


def _weights_of(opened: Opened) -> dict[str, Tensor]:
    """The weights without heads that nothing else has (sentence order)."""
    parts = ("encoder.", "mlm.") if opened.labels is None else ("encoder.", "head.")
    return {name: weight for name, weight in opened.weights.items() if name.startswith(parts)}


def _rename(weights: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    renamed = {}
    for name, weight in weights.items():
        theirs = names.theirs(name)
        assert theirs is not None, name
        renamed[theirs] = weight
    return renamed


def _from_row(weights: dict[str, Tensor], config: ModelConfig, offset: int) -> None:
    """Let the table of positions begin at another row."""
    table_PE = weights[_POSITIONS]
    if config.position_offset != offset:
        unused_PE = table_PE.new_zeros(offset, table_PE.shape[1])
        weights[_POSITIONS] = torch.cat([unused_PE, table_PE[config.position_offset :]])


def _bert(opened: Opened) -> Layout:
    weights = _weights_of(opened)
    _from_row(weights, opened.config, 0)
    dropout = opened.config.dropout_prob
    keys = {
        "model_type": "bert",
        "architectures": [f"Bert{_name_of_head(opened)}"],
        **_common(opened),
        "hidden_act": _ACTIVATIONS[opened.config.activation],
        "hidden_dropout_prob": dropout,
        # Attention weights have no dropout here.
        "attention_probs_dropout_prob": 0.0,
    }
    same = "transformers' own BERT computes the same for any length and any padding (positions begin at row 0 there)."
    return Layout(keys, _rename(weights, BERT), False, same)


def _modernbert(opened: Opened) -> Layout:
    config = opened.config
    weights = _weights_of(opened)
    type_E = weights[_TYPES][0]
    renamed = modernbert.joined(_rename(weights, MODERNBERT))
    tied = not bool(type_E.any())
    if not tied:
        # The one type of sentences is part of every token; the output knows the tokens without it.
        renamed["decoder.weight"] = weights[_WORDS]
        renamed["model.embeddings.tok_embeddings.weight"] = weights[_WORDS] + type_E
    windows = [attention.window for attention in config.attentions if isinstance(attention, LongformerConfig)]
    local = config.rope_theta if config.rope_theta_local is None else config.rope_theta_local
    keys = _common(opened)
    del keys["type_vocab_size"], keys["layer_norm_eps"]
    keys |= {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "hidden_activation": _ACTIVATIONS[config.activation],
        "classifier_activation": _ACTIVATIONS[config.activation],
        "norm_eps": config.layer_norm_eps,
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), config.bias),
        "decoder_bias": True,
        "layer_types": [
            modernbert.SLIDING if isinstance(attention, LongformerConfig) else modernbert.FULL
            for attention in config.attentions
        ],
        "local_attention": windows[0] if windows else 128,
        "rope_parameters": {
            modernbert.FULL: {"rope_type": "default", "rope_theta": config.rope_theta},
            modernbert.SLIDING: {"rope_type": "default", "rope_theta": local},
        },
        "classifier_pooling": "mean" if config.pooling == "mean" else "cls",
        "embedding_dropout": _or_else(config.embedding_dropout_prob, config.dropout_prob),
        "attention_dropout": _or_else(config.attention_dropout_prob, config.dropout_prob),
        "mlp_dropout": config.hidden_dropout_prob,
        "tie_word_embeddings": tied,
        # Its defaults are of a larger vocabulary; a tokenizer's own take their place.
        **dict.fromkeys(f"{role}_token_id" for role in ("bos", "pad", "eos", "cls", "sep")),
    }
    same = "transformers' own ModernBERT computes the same for any length and any padding."
    return Layout(keys, renamed, False, same)


def _or_else(own: float | None, usual: float) -> float:
    return usual if own is None else own


def _nystromformer(opened: Opened) -> Layout:
    config, first = opened.config, opened.config.attentions[0]
    weights = _weights_of(opened)
    _from_row(weights, config, _THEIR_OFFSET)
    taps = first.conv_kernel_size
    if taps is None:
        # Their module always has one: of a single tap of zero, it adds nothing.
        skip = torch.zeros(config.num_head, 1, 1, 1)
        weights |= {f"encoder.layers.{n}.attention.core.skip.weight": skip.clone() for n in range(config.num_layers)}
    is_exact = isinstance(first, SoftmaxConfig)
    landmarks = 64 if is_exact else first.num_landmarks  # type: ignore[attr-defined]
    keys = {
        "model_type": "nystromformer",
        "architectures": [f"Nystromformer{_name_of_head(opened)}"],
        **_common(opened),
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout_prob,
        "attention_probs_dropout_prob": 0.0,
        "num_landmarks": landmarks,
        "segment_means_seq_len": landmarks if is_exact else config.max_seq_len,
        "conv_kernel_size": taps or 1,
    }
    same = (
        "transformers' own Nystromformer computes the same for rows without padding (equal num_landmarks and "
        "segment_means_seq_len mean softmax there); its convolution takes padding in."
        if is_exact
        else f"transformers' own Nystromformer computes the same for rows of exactly {config.max_seq_len} tokens, "
        "without padding, and fails, or mixes rows, on others."
    )
    return Layout(keys, _rename(weights, NYSTROMFORMER), False, same)


def _file(opened: Opened) -> Layout:
    config, module = opened.config, MODULE_FILE.removesuffix(".py")
    head = _name_of_head(opened)
    keys = {
        "model_type": "nystrom_encoder",
        "architectures": [f"NystromEncoder{head}"],
        "auto_map": {
            "AutoConfig": f"{module}.NystromEncoderConfig",
            "AutoModel": f"{module}.NystromEncoderModel",
            # Of one that guesses masked tokens with a new head.
            **{f"AutoModel{each}": f"{module}.NystromEncoder{each}" for each in (head, "ForSequenceClassification")},
        },
        **_common(opened),
        "hidden_act": config.activation,
        # The file has none; a training that begins with an import has.
        "hidden_dropout_prob": config.dropout_prob,
        "embedding_size": config.embedding_dim,
        "norm": config.norm,
        "norm_type": config.norm_type,
        "skip_first_prenorm": config.skip_first_prenorm,
        "feed_forward": config.feed_forward,
        "bias": config.bias,
        "head_transform": config.head_transform,
        "rotary_theta": config.rope_theta,
        "rotary_theta_local": config.rope_theta_local,
        "embedding_norm": config.embedding_norm,
        "positions": config.positions,
        "position_offset": config.position_offset,
        "pooling": config.pooling,
        "classifier_act": opened.between,
        "attentions": [_attention(attention) for attention in config.attentions],
        "local_layers": [attention.is_local for attention in config.attentions],
    }
    same = (
        f"`{MODULE_FILE}`, one file of plain PyTorch that `trust_remote_code=True` runs, computes the same for any "
        "length and any padding. It is for inference: it has a loss, and no dropout."
    )
    if others := sorted(
        {each.name for each in config.attentions if not isinstance(each, NystromConfig | SoftmaxConfig)}
    ):
        same += (
            f" It needs the package nystromformer installed, for {' and '.join(others)}: `pip install -e .` in a clone."
        )
    return Layout(keys, _weights_of(opened), True, same)


def _attention(attention: AttentionConfig) -> dict[str, Any]:
    if not isinstance(attention, NystromConfig | SoftmaxConfig):
        return attention.model_dump(mode="json")
    keys = ["name", "conv_kernel_size"]
    if isinstance(attention, NystromConfig):
        keys += ["num_landmarks", "landmarks", "pinv_iterations", "pinv_start"]
    return {key: getattr(attention, key) for key in keys}
