"""Others' configs as this project's: the section "model" that computes what they compute."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nystromformer.config.network import SHAPE_KEYS
from nystromformer.errors import UserError
from nystromformer.interop.formats import modernbert

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
}
"""transformers' names of activations. Those of one form of GELU are computed in other ways, to the same result."""
_THEIR_ATTENTIONS = ("nystrom", "softmax")
_SIZES = (*SHAPE_KEYS, "max_seq_len")
OWN_TYPE = "nystrom_encoder"
"""The model_type of what this project exports with a file of code."""
_OWN = {
    "vocab_size": "vocab_size",
    "num_sen_type": "type_vocab_size",
    "max_seq_len": "max_position_embeddings",
    "embedding_dim": "embedding_size",
    "transformer_dim": "hidden_size",
    "transformer_hidden_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_head": "num_attention_heads",
    "activation": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "norm": "norm",
    "norm_type": "norm_type",
    "skip_first_prenorm": "skip_first_prenorm",
    "feed_forward": "feed_forward",
    "bias": "bias",
    "head_transform": "head_transform",
    "rope_theta": "rotary_theta",
    "rope_theta_local": "rotary_theta_local",
    "embedding_norm": "embedding_norm",
    "positions": "positions",
    "position_offset": "position_offset",
    "pooling": "pooling",
    "dropout_prob": "hidden_dropout_prob",
    "attn_type": "attentions",
}
_INVERSE_START = "inv_init_coeff_option"


@dataclass(frozen=True)
class Translated:
    """A source's network."""

    model: dict[str, Any]
    """The section "model" that computes what the source computes on input that it takes, without padding."""
    general: dict[str, Any]
    """The same network with attentions that take any length and any padding."""
    notes: list[str]

    def with_pooling(self, pooling: str) -> "Translated":
        """The same with another pooling."""
        added = {"pooling": pooling}
        return replace(self, model=self.model | added, general=self.general | added)


def translate_transformers(config: Mapping[str, Any], path: Path) -> Translated:
    """The config.json of a transformers folder.

    Raises:
        UserError: it is none of a bidirectional encoder that this project can be; all reasons at once.
    """
    full = with_defaults(config, path)
    is_modern = full["model_type"] == "modernbert"
    problems = modernbert.unsupported(full) if is_modern else _unsupported(full)
    if problems:
        raise UserError(f"{path}: cannot be imported: {'; '.join(problems)}")
    if is_modern:
        section = modernbert.section_of(full)
        return Translated(section, section, [])
    offset = full["pad_token_id"] + 1 if full["model_type"] == "roberta" else 0
    positions = full["max_position_embeddings"] - offset
    if full["model_type"] == "nystromformer":
        offset = 2
    model = {
        "vocab_size": full["vocab_size"],
        "num_sen_type": full["type_vocab_size"],
        "max_seq_len": positions,
        "embedding_dim": full["hidden_size"],
        "transformer_dim": full["hidden_size"],
        "transformer_hidden_dim": full["intermediate_size"],
        "num_layers": full["num_hidden_layers"],
        "dropout_prob": float(full["hidden_dropout_prob"]),
        "num_head": full["num_attention_heads"],
        "head_dim": full["hidden_size"] // full["num_attention_heads"],
        "activation": _ACTIVATIONS[full["hidden_act"]],
        "layer_norm_eps": full["layer_norm_eps"],
        "position_offset": offset,
    }
    if full["model_type"] != "nystromformer":
        return Translated(model | {"attn_type": "softmax"}, model | {"attn_type": "softmax"}, [])
    # With the option on, their module fails as it is built: what it would compute is known from its text.
    start = "matrix" if full["inv_coeff_init_option"] else "batch"
    sizes = full["num_landmarks"], full["segment_means_seq_len"], full["conv_kernel_size"]
    attention = {"segments": "padded_unmasked", "pinv_start": start}
    return _nystrom(model, *sizes, attention, "segment_means_seq_len", path)


def translate_own(config: Mapping[str, Any], path: Path) -> Translated:
    """The config.json of a folder that this project exported with a file of code, which has its own keys.

    Raises:
        UserError: keys are missing.
    """
    if missing := [theirs for theirs in _OWN.values() if theirs not in config]:
        raise UserError(f"{path}: expected what this project exports, found no {', '.join(missing)}")
    model = {ours: config[theirs] for ours, theirs in _OWN.items()}
    heads = model["num_head"]
    if type(heads) is int and heads > 0 and type(model["transformer_dim"]) is int:
        model["head_dim"] = model["transformer_dim"] // heads
    return Translated(model, model, [])


def translate_authors(section: Mapping[str, Any], path: Path) -> Translated:
    """The section "model" of the authors' config.json.

    Raises:
        UserError: a key is missing, or the attention is another than nystrom and softmax.
    """
    name = section.get("attn_type")
    needed = [*_SIZES, "attn_type", *(("num_landmarks", "seq_len") if name == "nystrom" else ())]
    if missing := [key for key in needed if key not in section]:
        raise UserError(f"{path}: expected the section model of the authors' code, found no {', '.join(missing)}")
    if name not in _THEIR_ATTENTIONS:
        raise UserError(f"{path}: attn_type: expected {' or '.join(_THEIR_ATTENTIONS)}, found {name!r}")
    model = {key: section[key] for key in (*_SIZES, "num_sen_type", "dropout_prob") if key in section}
    if name == "softmax":
        return Translated(model | {"attn_type": "softmax"}, model | {"attn_type": "softmax"}, [])
    landmarks, length, notes = section["num_landmarks"], section["seq_len"], []
    if all(isinstance(value, int) for value in (landmarks, length)) and landmarks > length:
        # No segment would have a token: their code cannot compute it, so that the two must have been swapped.
        notes = [f"num_landmarks = {landmarks} and seq_len = {length} of {path} are taken to be swapped"]
        landmarks, length = length, landmarks
    start = "matrix" if section.get(_INVERSE_START, "original") != "original" else "batch"
    attention = {"segments": "padded", "pinv_start": start}
    translated = _nystrom(model, landmarks, length, section.get("conv_kernel_size"), attention, "seq_len", path)
    return replace(translated, notes=notes + translated.notes)


def _nystrom(
    model: dict[str, Any],
    landmarks: Any,
    length: Any,
    taps: Any,
    attention: dict[str, str],
    length_key: str,
    path: Path,
) -> Translated:
    """Both forms of a network with Nyström attention.

    Args:
        length: the one number of tokens that the source's segments are made for, its `length_key`.
        taps: of the convolution; None for none.
        attention: its other parameters in the form that computes what the source computes.

    Raises:
        UserError: an even convolution, or landmarks that do not divide the length.
    """
    if not all(type(value) is int and value > 0 for value in (landmarks, length)):
        found = f"num_landmarks {landmarks!r}, {length_key} {length!r}"
        raise UserError(f"{path}: expected positive integers, found {found}")
    if taps is not None and (type(taps) is not int or taps % 2 == 0):
        raise UserError(f"{path}: conv_kernel_size: expected an odd number, found {taps!r}")
    model = model | ({} if taps is None else {"conv_kernel_size": taps})
    if landmarks == length:
        exact = model | {"attn_type": "softmax"}
        same = f"num_landmarks = {length_key} = {landmarks}: the source computes exact softmax attention"
        return Translated(exact, exact, [f'{same}, without landmarks; attn_type is "softmax"'])
    if length % landmarks:
        raise UserError(
            f"{path}: num_landmarks = {landmarks} does not divide {length_key} = {length}: the source's code cannot "
            "compute it"
        )
    if length > model["max_seq_len"]:
        raise UserError(f"{path}: {length_key} = {length} is more than its {model['max_seq_len']} positions")
    theirs = {"name": "nystrom", "num_landmarks": landmarks, **attention}
    as_source = model | {"attn_type": theirs, "max_seq_len": length}
    general = model | {"attn_type": "nystrom", "num_landmarks": landmarks}
    return Translated(as_source, general, [])


def with_defaults(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What transformers reads in the file: of keys that are left out, its defaults."""
    from transformers import BertConfig, ModernBertConfig, NystromformerConfig, RobertaConfig

    classes: dict[str, Any] = {
        "bert": BertConfig,
        "modernbert": ModernBertConfig,
        "nystromformer": NystromformerConfig,
        "roberta": RobertaConfig,
    }
    try:
        full: dict[str, Any] = classes[config["model_type"]].from_dict(dict(config)).to_dict()
    except Exception as error:  # the library's checks raise errors of several kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{path}: transformers cannot read it: {': '.join(lines[:3])[:400]}") from error
    return full


def _unsupported(full: Mapping[str, Any]) -> list[str]:
    problems = []
    if full["hidden_act"] not in _ACTIVATIONS:
        problems.append(f"hidden_act: expected one of {', '.join(_ACTIVATIONS)}, found {full['hidden_act']!r}")
    if full["model_type"] == "roberta" and _ACTIVATIONS.get(full["hidden_act"]) != "gelu":
        problems.append('hidden_act: expected "gelu" of RoBERTa, whose head has it, whatever the layers have')
    if full["num_attention_heads"] < 1:
        problems.append(f"num_attention_heads: expected at least one, found {full['num_attention_heads']}")
    elif full["hidden_size"] % full["num_attention_heads"]:
        problems.append(f"{full['num_attention_heads']} heads do not divide hidden_size = {full['hidden_size']}")
    if full.get("is_decoder") or full.get("add_cross_attention"):
        problems.append("a decoder, where an encoder was expected")
    if full.get("position_embedding_type", "absolute") != "absolute":
        problems.append(f"position_embedding_type: expected absolute, found {full['position_embedding_type']!r}")
    if full["model_type"] == "roberta" and not isinstance(full["pad_token_id"], int):
        problems.append("pad_token_id: expected a number, behind which RoBERTa's positions begin, found none")
    return problems
