"""transformers' ModernBERT: its config as the section "model", and its weights as this project's names expect them.

Shapes: E width.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "silu": "silu"}
"""transformers' names of activations."""
FULL, SLIDING = "full_attention", "sliding_attention"
_JOINT = re.compile(r"(model\.layers\.\d+\.attn\.)Wqkv\.(weight|bias)")
_PARTS = ("query", "key", "value")
_TYPES, _WORDS = "model.embeddings.type_embeddings.weight", "model.embeddings.tok_embeddings.weight"
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")


def unsupported(full: Mapping[str, Any]) -> list[str]:
    """Why a config.json, with transformers' defaults, cannot be imported."""
    problems = [
        f"{key}: expected one of {', '.join(ACTIVATIONS)}, found {full[key]!r}"
        for key in ("hidden_activation", "classifier_activation")
        if full[key] not in ACTIVATIONS
    ]
    if full["hidden_activation"] != full["classifier_activation"]:
        problems.append("classifier_activation: expected that of the layers, hidden_activation")
    if full["num_attention_heads"] < 1:
        problems.append(f"num_attention_heads: expected at least one, found {full['num_attention_heads']}")
    elif full["hidden_size"] % full["num_attention_heads"]:
        problems.append(f"{full['num_attention_heads']} heads do not divide hidden_size = {full['hidden_size']}")
    if unknown := sorted(set(full["layer_types"]) - {FULL, SLIDING}):
        problems.append(f"layer_types: expected {FULL} and {SLIDING}, found {', '.join(map(repr, unknown))}")
    longest = full["max_position_embeddings"]
    if SLIDING in full["layer_types"] and full["local_attention"] > longest + 1:
        problems.append(
            f"local_attention: expected at most max_position_embeddings = {longest}, found {full['local_attention']}"
        )
    for kind in sorted({FULL, SLIDING} & set(full["layer_types"])):
        if (found := full["rope_parameters"][kind]["rope_type"]) != "default":
            problems.append(f"rope_parameters.{kind}.rope_type: expected 'default', found {found!r}")
    return problems


def section_of(full: Mapping[str, Any]) -> dict[str, Any]:
    """The section "model" that computes what a ModernBERT does."""
    local = {"name": "longformer", "window": 2 * (full["local_attention"] // 2), "num_global_tokens": 0}
    kinds, heads, width = full["layer_types"], full["num_attention_heads"], full["hidden_size"]
    theta = {kind: float(full["rope_parameters"][kind]["rope_theta"]) for kind in (FULL, SLIDING)}
    return {
        "vocab_size": full["vocab_size"],
        "max_seq_len": full["max_position_embeddings"],
        "embedding_dim": width,
        "transformer_dim": width,
        "transformer_hidden_dim": full["intermediate_size"],
        "num_layers": full["num_hidden_layers"],
        "num_head": heads,
        "head_dim": width // heads,
        "attn_type": ["softmax" if kind == FULL else local for kind in kinds],
        "norm": "pre",
        "skip_first_prenorm": True,
        "feed_forward": "glu",
        "activation": ACTIVATIONS[full["hidden_activation"]],
        "bias": _has_bias(full),
        "layer_norm_eps": full["norm_eps"],
        "positions": "rotary",
        "rope_theta": theta[FULL],
        "rope_theta_local": theta[SLIDING] if SLIDING in kinds else None,
        "pooling": "mean" if full["classifier_pooling"] == "mean" else "first",
        "dropout_prob": 0.0,
        "embedding_dropout_prob": float(full["embedding_dropout"]),
        "attention_dropout_prob": float(full["attention_dropout"]),
        "hidden_dropout_prob": float(full["mlp_dropout"]),
    }


def _has_bias(full: Mapping[str, Any]) -> bool:
    return any(full[key] for key in _BIASES)


def separated(stored: Mapping[str, Tensor], full: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights with queries, keys and values apart, and zeros for what this project's model has and it has not: the
    one type of sentences, and where some maps and norms have a bias those of the others. Where the input's words are
    the output's and one vector more, as `joined` leaves them, that vector is the type.
    """
    weights: dict[str, Tensor] = {}
    for name, weight in stored.items():
        if (joint := _JOINT.fullmatch(name)) is not None and len(weight) % 3 == 0:
            weights |= {f"{joint[1]}{part}.{joint[2]}": w for part, w in zip(_PARTS, weight.chunk(3), strict=True)}
        else:
            weights[name] = weight
    if _WORDS in weights:
        words, output = weights[_WORDS], weights.get("decoder.weight", weights[_WORDS])
        weights[_TYPES] = words.new_zeros(1, words.shape[-1])
        if output.shape == words.shape:
            added = (words - output).mean(0, keepdim=True)
            rounding = 4 * torch.finfo(words.dtype).eps * words.abs().max()
            if torch.allclose(words, output + added, rtol=0.0, atol=float(rounding)):
                weights[_WORDS], weights[_TYPES] = output, added
    if "head.dense.weight" in weights and not full["decoder_bias"]:
        weights["decoder.bias"] = weights[_WORDS].new_zeros(full["vocab_size"])
    if _has_bias(full):
        for name in [name for name in weights if name.endswith(".weight")]:
            is_table = name in (_WORDS, _TYPES, "decoder.weight")
            if not is_table and weights[name].ndim:
                weights.setdefault(f"{name.removesuffix('weight')}bias", weights[name].new_zeros(len(weights[name])))
    return weights


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse: weights by its names as it stores them, without the type of sentences."""
    joint = dict(weights)
    joint.pop(_TYPES, None)
    for name in list(joint):
        if ".attn.query." in name:
            parts = [joint.pop(name.replace(".query.", f".{part}.")) for part in _PARTS]
            joint[name.replace(".query.", ".Wqkv.")] = torch.cat(parts)
    return joint
