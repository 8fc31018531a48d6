"""The table of formats: what other libraries call an encoder's settings and weights, an entry each for both ways.

Shapes: E width.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, NystromConfig, SoftmaxConfig
from nystromformer.config.attention.longformer import LongformerConfig
from nystromformer.config.network import SHAPE_KEYS
from nystromformer.errors import UserError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
}
"""transformers' names of activations, and those of exported code, by this project's. Those of one form of GELU differ
in how they compute it."""
_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
_LAYER = "encoder.layers.{}."
_WORDS, _POSITIONS, _TYPES = (f"encoder.embeddings.{each}.weight" for each in ("word", "position", "sentence_type"))
FULL, SLIDING = "full_attention", "sliding_attention"
_PARTS = ("query", "key", "value")
_JOINT = re.compile(r"(model\.layers\.\d+\.attn\.)Wqkv\.(weight|bias)")


@dataclass(frozen=True, eq=False)
class Format:
    """One kind of model: its names beside this project's, `{}` for a layer's number, and what its network always is."""

    kind: str
    """config.json's model_type."""
    title: str
    """How the names of transformers' classes begin."""
    prefix: str
    """Of the encoder's weights; a model without a head is also stored without it."""
    modules: Mapping[str, str]
    """Modules, ours by theirs: of the encoder, of the head for masked tokens (mlm) and of a classification (head)."""
    settings: Mapping[str, str]
    """Keys of the section "model" by those of its config.json."""
    fixed: Mapping[str, object]
    """Keys of the section "model" that no setting of it changes."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Where else it stores weights: the word embedding, to which the output matrix is tied, and the output's bias."""
    inner: tuple[str, ...] = ("embeddings.", "encoder.")
    """What of the encoder's weights, behind the prefix, has a place in the model: there, nothing is left out."""

    def named(self, name: str) -> str:
        """What they call a weight of ours."""
        for ours, theirs in self.modules.items():
            pattern = re.escape(ours).replace(r"\{\}", r"(\d+)")
            if match := re.fullmatch(rf"{pattern}((?:\..+)?)", name):
                *layer, rest = match.groups()
                return theirs.format(*layer) + rest
        raise KeyError(name)

    def read(self, full: Mapping[str, Any]) -> dict[str, Any]:
        """The section "model", but for the attention and what else is special to the format."""
        section: dict[str, Any] = dict(self.fixed) | {ours: full[theirs] for ours, theirs in self.settings.items()}
        section["head_dim"] = section["transformer_dim"] // max(1, section["num_head"])
        section["activation"] = ACTIVATIONS[section["activation"]]
        return section

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The inverse."""
        keys = {theirs: getattr(config, ours) for ours, theirs in self.settings.items()}
        return keys | {self.settings["activation"]: _THEIR_ACTIVATIONS[config.activation]}

    def why_not(self, config: ModelConfig, head: str) -> str | None:
        """Why a network with such a head (ForMaskedLM, ForSequenceClassification or Model) is none of these; None where
        it is one.
        """
        wanted: dict[str, object] = dict(self.fixed)
        if head == "ForSequenceClassification":
            if "head.dense" not in self.modules:
                return "its classification is another network than the model's"
            wanted["pooling"] = "first"
        elif head == "ForMaskedLM":
            wanted["head_transform"] = True
        for key, value in wanted.items():
            if getattr(config, key) != value:
                return f"it has {key} {value!r}, the model {getattr(config, key)!r}"
        if config.embedding_dim != config.transformer_dim:
            return "its embeddings have the layers' width, without a projection"
        return _ATTENTIONS[self.kind](config)

    def renamed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self.named(name): weight for name, weight in weights.items()}


def _below(prefix: str, modules: Mapping[str, str]) -> dict[str, str]:
    return {ours: prefix + theirs for ours, theirs in modules.items()}


_BERT_ENCODER = {
    "encoder.embeddings.word": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.sentence_type": "embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "embeddings.LayerNorm",
    **{_LAYER + f"attention.{part}": f"encoder.layer.{{}}.attention.self.{part}" for part in _PARTS},
    _LAYER + "attention.output": "encoder.layer.{}.attention.output.dense",
    _LAYER + "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    _LAYER + "feed_forward.up": "encoder.layer.{}.intermediate.dense",
    _LAYER + "feed_forward.down": "encoder.layer.{}.output.dense",
    _LAYER + "feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
}
_BERT_MLM = {
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
}
_BERT_SETTINGS = {
    "vocab_size": "vocab_size",
    "num_sen_type": "type_vocab_size",
    "max_seq_len": "max_position_embeddings",
    "embedding_dim": "hidden_size",
    "transformer_dim": "hidden_size",
    "transformer_hidden_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_head": "num_attention_heads",
    "activation": "hidden_act",
    "layer_norm_eps": "layer_norm_eps",
    "dropout_prob": "hidden_dropout_prob",
}
_POST_NORM: dict[str, object] = {
    "norm": "post",
    "norm_type": "layer_norm",
    "embedding_norm": True,
    "feed_forward": "mlp",
    "bias": True,
    "positions": "learned",
    "reversible": False,
}
_BERT_COPIES = {"cls.predictions.decoder.weight": _WORDS, "cls.predictions.decoder.bias": "mlm.bias"}

BERT = Format(
    "bert",
    "Bert",
    prefix="bert.",
    modules=_below("bert.", _BERT_ENCODER)
    | _BERT_MLM
    | {"head.dense": "bert.pooler.dense", "head.classifier": "classifier"},
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM,
    copies=_BERT_COPIES,
)
ROBERTA = Format(
    "roberta",
    "Roberta",
    prefix="roberta.",
    modules=_below("roberta.", _BERT_ENCODER)
    | {"mlm.transform": "lm_head.dense", "mlm.norm": "lm_head.layer_norm", "mlm.bias": "lm_head.bias"},
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM,
    copies={"lm_head.decoder.weight": _WORDS, "lm_head.decoder.bias": "mlm.bias"},
)
_DISTILBERT = "distilbert.transformer.layer.{}."
DISTILBERT = Format(
    "distilbert",
    "DistilBert",
    prefix="distilbert.",
    modules={
        "encoder.embeddings.word": "distilbert.embeddings.word_embeddings",
        "encoder.embeddings.position": "distilbert.embeddings.position_embeddings",
        "encoder.embeddings.sentence_type": "distilbert.embeddings.no_types",
        "encoder.embeddings.norm": "distilbert.embeddings.LayerNorm",
        **{_LAYER + f"attention.{part}": _DISTILBERT + f"attention.{part[0]}_lin" for part in _PARTS},
        _LAYER + "attention.output": _DISTILBERT + "attention.out_lin",
        _LAYER + "attention_norm": _DISTILBERT + "sa_layer_norm",
        _LAYER + "feed_forward.up": _DISTILBERT + "ffn.lin1",
        _LAYER + "feed_forward.down": _DISTILBERT + "ffn.lin2",
        _LAYER + "feed_forward_norm": _DISTILBERT + "output_layer_norm",
        "mlm.transform": "vocab_transform",
        "mlm.norm": "vocab_layer_norm",
        "mlm.bias": "vocab_projector.bias",
    },
    settings={
        "vocab_size": "vocab_size",
        "max_seq_len": "max_position_embeddings",
        "embedding_dim": "dim",
        "transformer_dim": "dim",
        "transformer_hidden_dim": "hidden_dim",
        "num_layers": "n_layers",
        "num_head": "n_heads",
        "activation": "activation",
        "dropout_prob": "dropout",
    },
    fixed=_POST_NORM | {"layer_norm_eps": 1e-12, "num_sen_type": 1},
    copies={"vocab_projector.weight": _WORDS},
    inner=("embeddings.", "transformer."),
)
"""It has no types of sentences."""
NYSTROMFORMER = Format(
    "nystromformer",
    "Nystromformer",
    prefix="nystromformer.",
    modules=_below(
        "nystromformer.", _BERT_ENCODER | {_LAYER + "attention.core.skip": "encoder.layer.{}.attention.self.conv"}
    )
    | _BERT_MLM,
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM,
    copies=_BERT_COPIES,
)
MODERNBERT = Format(
    "modernbert",
    "ModernBert",
    prefix="model.",
    modules={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.sentence_type": "model.embeddings.no_types",
        "encoder.embeddings.norm": "model.embeddings.norm",
        **{_LAYER + f"attention.{part}": f"model.layers.{{}}.attn.{part}" for part in _PARTS},
        _LAYER + "attention.output": "model.layers.{}.attn.Wo",
        _LAYER + "attention_norm": "model.layers.{}.attn_norm",
        _LAYER + "feed_forward.up": "model.layers.{}.mlp.Wi",
        _LAYER + "feed_forward.down": "model.layers.{}.mlp.Wo",
        _LAYER + "feed_forward_norm": "model.layers.{}.mlp_norm",
        "encoder.final_norm": "model.final_norm",
        "mlm.transform": "head.dense",
        "mlm.norm": "head.norm",
        "mlm.bias": "decoder.bias",
    },
    settings={
        "vocab_size": "vocab_size",
        "max_seq_len": "max_position_embeddings",
        "embedding_dim": "hidden_size",
        "transformer_dim": "hidden_size",
        "transformer_hidden_dim": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_head": "num_attention_heads",
        "activation": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "mlp_dropout",
    },
    fixed={
        "norm": "pre",
        "norm_type": "layer_norm",
        "embedding_norm": True,
        "skip_first_prenorm": True,
        "feed_forward": "glu",
        "head_transform": True,
        "positions": "rotary",
        "reversible": False,
        "num_sen_type": 1,
    },
    copies={"decoder.weight": _WORDS},
    inner=("",),
)
"""Once `completed` has cut its one map of queries, keys and values into three. It has no types of sentences."""
_OWN_KEYS = (
    *("norm", "norm_type", "skip_first_prenorm", "feed_forward", "bias", "head_transform"),
    *("embedding_norm", "positions", "position_offset", "pooling"),
)
OWN = Format(
    "nystrom_encoder",
    "NystromEncoder",
    prefix="encoder.",
    modules={"encoder": "encoder", "mlm": "mlm"},
    settings=_BERT_SETTINGS
    | {
        "embedding_dim": "embedding_size",
        "rope_theta": "rotary_theta",
        "rope_theta_local": "rotary_theta_local",
        "attn_type": "attentions",
        **{key: key for key in _OWN_KEYS},
    },
    fixed={"reversible": False},
    inner=("",),
)
"""What this project exports with a file of code."""
AUTHORS = Format(
    "authors",
    "",
    prefix="model.",
    modules={
        "encoder.embeddings.word": "model.embeddings.word_embeddings",
        "encoder.embeddings.position": "model.embeddings.position_embeddings",
        "encoder.embeddings.sentence_type": "model.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.embeddings.projection": "model.embeddings.dense",
        **{_LAYER + f"attention.{part}": f"model.transformer_{{}}.mha.W_{part[0]}" for part in _PARTS},
        _LAYER + "attention.output": "model.transformer_{}.mha.ff",
        _LAYER + "attention.core.skip": "model.transformer_{}.mha.attn.conv",
        _LAYER + "attention_norm": "model.transformer_{}.norm1",
        _LAYER + "feed_forward.up": "model.transformer_{}.ff1",
        _LAYER + "feed_forward.down": "model.transformer_{}.ff2",
        _LAYER + "feed_forward_norm": "model.transformer_{}.norm2",
        "mlm.transform": "mlm.dense",
        "mlm.norm": "mlm.norm",
        "mlm.bias": "mlm.mlm_class.bias",
    },
    settings={key: key for key in (*SHAPE_KEYS, "max_seq_len")},
    fixed={},
    copies={"mlm.mlm_class.weight": _WORDS},
    inner=("",),
)
FORMATS = {each.kind: each for each in (NYSTROMFORMER, BERT, ROBERTA, DISTILBERT, MODERNBERT, OWN)}
"""By model_type."""


@dataclass(frozen=True)
class Network:
    """A source's network."""

    model: dict[str, Any]
    """The section "model" that computes what the source computes on input that it takes, without padding."""
    general: dict[str, Any]
    """The same network with attentions that take any length and any padding."""
    notes: tuple[str, ...] = ()


def read_network(form: Format, full: Mapping[str, Any], path: Path) -> Network:
    """The config.json of a folder in a format, with transformers' defaults.

    Raises:
        UserError: it is none of a bidirectional encoder that this project can be; all reasons at once.
    """
    if missing := [theirs for theirs in form.settings.values() if theirs not in full]:
        raise UserError(f"{path}: expected what this project exports, found no {', '.join(missing)}")
    if problems := _unsupported(form, full):
        raise UserError(f"{path}: cannot be imported: {'; '.join(problems)}")
    section = form.read(full)
    if form is NYSTROMFORMER:
        attention = {"segments": "padded_unmasked", "pinv_start": "batch"}
        sizes = full["num_landmarks"], full["segment_means_seq_len"], full["conv_kernel_size"]
        return _nystrom(section | {"position_offset": 2}, *sizes, attention, "segment_means_seq_len", path)
    if form is MODERNBERT:
        section |= _read_modernbert(full)
    elif form is not OWN:
        offset = full["pad_token_id"] + 1 if form is ROBERTA else 0
        section |= {"position_offset": offset, "attn_type": "softmax"}
        section["max_seq_len"] -= offset
    return Network(section, section)


def read_authors(section: Mapping[str, Any], path: Path) -> Network:
    """The section "model" of the authors' config.json.

    Raises:
        UserError: a key is missing, or the attention is another than nystrom and softmax.
    """
    name = section.get("attn_type")
    needed = [*AUTHORS.settings, "attn_type", *(("num_landmarks", "seq_len") if name == "nystrom" else ())]
    if missing := [key for key in needed if key not in section]:
        raise UserError(f"{path}: expected the section model of the authors' code, found no {', '.join(missing)}")
    if name not in ("nystrom", "softmax"):
        raise UserError(f"{path}: attn_type: expected nystrom or softmax, found {name!r}")
    model = {key: section[key] for key in (*AUTHORS.settings, "num_sen_type", "dropout_prob") if key in section}
    if name == "softmax":
        model["attn_type"] = "softmax"
        return Network(model, model)
    landmarks, length, notes = section["num_landmarks"], section["seq_len"], []
    if all(isinstance(value, int) for value in (landmarks, length)) and landmarks > length:
        # No segment would have a token: their code cannot compute it, so that the two must have been swapped.
        notes = [f"num_landmarks = {landmarks} and seq_len = {length} of {path} are taken to be swapped"]
        landmarks, length = length, landmarks
    start = "matrix" if section.get("inv_init_coeff_option", "original") != "original" else "batch"
    attention = {"segments": "padded", "pinv_start": start}
    network = _nystrom(model, landmarks, length, section.get("conv_kernel_size"), attention, "seq_len", path)
    return Network(network.model, network.general, (*notes, *network.notes))


def _nystrom(
    model: dict[str, Any],
    landmarks: Any,
    length: Any,
    taps: Any,
    attention: dict[str, str],
    length_key: str,
    path: Path,
) -> Network:
    """Both forms of a network with Nyström attention, whose segments are made for rows of `length` tokens."""
    if not all(type(value) is int and value > 0 for value in (landmarks, length)):
        found = f"num_landmarks {landmarks!r}, {length_key} {length!r}"
        raise UserError(f"{path}: expected positive integers, found {found}")
    model = model | ({} if taps is None else {"conv_kernel_size": taps})
    if landmarks == length:
        exact = model | {"attn_type": "softmax"}
        same = f"num_landmarks = {length_key} = {landmarks}: the source computes exact softmax attention"
        return Network(exact, exact, (f'{same}, without landmarks; attn_type is "softmax"',))
    if length % landmarks:
        raise UserError(
            f"{path}: num_landmarks = {landmarks} does not divide {length_key} = {length}: the source's code cannot "
            "compute it"
        )
    theirs = {"name": "nystrom", "num_landmarks": landmarks, **attention}
    as_source = model | {"attn_type": theirs, "max_seq_len": length}
    return Network(as_source, model | {"attn_type": "nystrom", "num_landmarks": landmarks})


def with_defaults(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What transformers reads in a config.json: of keys that are left out, its defaults."""
    from transformers import CONFIG_MAPPING

    try:
        full: dict[str, Any] = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config)).to_dict()
    except Exception as error:  # the library's checks raise errors of several kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{path}: transformers cannot read it: {', '.join(lines[:3])[:400]}") from error
    return full


def _unsupported(form: Format, full: Mapping[str, Any]) -> list[str]:
    """Why a config.json cannot be read."""
    problems = []
    key = form.settings["activation"]
    if full[key] not in ACTIVATIONS:
        problems.append(f"{key}: expected one of {', '.join(ACTIVATIONS)}, found {full[key]!r}")
    if full.get("is_decoder") or full.get("add_cross_attention"):
        problems.append("a decoder, where an encoder was expected")
    if full.get("position_embedding_type", "absolute") != "absolute":
        problems.append(f"position_embedding_type: expected absolute, found {full['position_embedding_type']!r}")
    if form is ROBERTA and ACTIVATIONS.get(full[key]) != "gelu":
        problems.append('hidden_act: expected "gelu" of RoBERTa, whose head has it, whatever the layers have')
    if form is MODERNBERT:
        if full[key] != full["classifier_activation"]:
            problems.append("classifier_activation: expected that of the layers, hidden_activation")
        if len({full[each] for each in _BIASES}) > 1 or not full["decoder_bias"]:
            problems.append(f"{', '.join(_BIASES)}: expected all or none, and decoder_bias")
        if unknown := sorted(set(full["layer_types"]) - {FULL, SLIDING}):
            problems.append(f"layer_types: expected {FULL} and {SLIDING}, found {', '.join(map(repr, unknown))}")
        for kind in sorted({FULL, SLIDING} & set(full["layer_types"])):
            if (found := full["rope_parameters"][kind]["rope_type"]) != "default":
                problems.append(f"rope_parameters.{kind}.rope_type: expected 'default', found {found!r}")
    return problems


def _softmax_alone(config: ModelConfig) -> str | None:
    others = [attention.name for attention in config.attentions if not isinstance(attention, SoftmaxConfig)]
    if others:
        return f"it has softmax attention, the model {others[0]}"
    if any(attention.conv_kernel_size or attention.ignore_mask for attention in config.attentions):
        return "its attention has no convolution and goes by the mask"
    return None


def _fixed_segments(config: ModelConfig) -> str | None:
    first = config.attentions[0]
    if isinstance(first, NystromConfig) and first.conv_kernel_size and set(config.attentions) == {first}:
        sizes = {"num_landmarks": first.num_landmarks, "conv_kernel_size": first.conv_kernel_size}
        if first == NystromConfig(**sizes, segments="padded_unmasked", pinv_start="batch"):
            return None
    return (
        "it has Nyström attention in all layers, with a convolution, fixed segments over the padded length (segments "
        "padded_unmasked) and one start of the inverse for the whole batch (pinv_start batch)"
    )


def _windows(config: ModelConfig) -> str | None:
    for attention in config.attentions:
        # How many tokens a task may mark means nothing where none does.
        is_window = isinstance(attention, LongformerConfig) and attention == LongformerConfig(
            window=attention.window, global_capacity=attention.global_capacity, num_global_tokens=0
        )
        if attention != SoftmaxConfig() and not is_window:
            return f"it has softmax attention and sliding windows, the model {attention.name}, or more to it"
    if len({attention.window for attention in config.attentions if isinstance(attention, LongformerConfig)}) > 1:
        return "its windows are all of one width"
    return None


_ATTENTIONS = {BERT.kind: _softmax_alone, NYSTROMFORMER.kind: _fixed_segments, MODERNBERT.kind: _windows}
"""Why the attentions of a network are none of a format's, of the formats that are written."""
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")


def from_row(table_PE: Tensor, before: int, now: int) -> Tensor:
    """A table of positions that begins at another of its rows."""
    unused_PE = table_PE.new_zeros(now, table_PE.shape[1])
    return table_PE if before == now else torch.cat([unused_PE, table_PE[before:]])


def write_bert(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of what is a BERT."""
    stored = BERT.renamed({**weights, _POSITIONS: from_row(weights[_POSITIONS], config.position_offset, 0)})
    if not any(name.startswith(("mlm.", "head.")) for name in weights):
        # BertModel alone has a pooler, which would get random weights, with a warning.
        pooler, width = BERT.named("head.dense"), config.transformer_dim
        stored |= {f"{pooler}.weight": torch.eye(width), f"{pooler}.bias": torch.zeros(width)}
    # Attention weights have no dropout here.
    return BERT.write(config) | {"attention_probs_dropout_prob": 0.0}, stored


def write_nystromformer(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of what is transformers' Nystromformer."""
    first = config.attentions[0]
    assert isinstance(first, NystromConfig)
    moved = {**weights, _POSITIONS: from_row(weights[_POSITIONS], config.position_offset, 2)}
    keys = NYSTROMFORMER.write(config) | {
        "attention_probs_dropout_prob": 0.0,
        "num_landmarks": first.num_landmarks,
        "segment_means_seq_len": config.max_seq_len,
        "conv_kernel_size": first.conv_kernel_size,
    }
    return keys, NYSTROMFORMER.renamed(moved)


def _read_modernbert(full: Mapping[str, Any]) -> dict[str, Any]:
    local = {"name": "longformer", "window": 2 * (full["local_attention"] // 2), "num_global_tokens": 0}
    theta = {kind: float(full["rope_parameters"][kind]["rope_theta"]) for kind in (FULL, SLIDING)}
    return {
        "attn_type": ["softmax" if kind == FULL else local for kind in full["layer_types"]],
        "bias": full["mlp_bias"],
        "rope_theta": theta[FULL],
        "rope_theta_local": theta[SLIDING] if SLIDING in full["layer_types"] else None,
        "pooling": "mean" if full["classifier_pooling"] == "mean" else "first",
        "dropout_prob": 0.0,
        "embedding_dropout_prob": float(full["embedding_dropout"]),
        "attention_dropout_prob": float(full["attention_dropout"]),
    }


def write_modernbert(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of what is a ModernBERT. The one type of sentences is part of every token there; the output
    knows the tokens without it."""
    type_E = weights[_TYPES][0]
    joint = MODERNBERT.renamed({name: weight for name, weight in weights.items() if name != _TYPES})
    if not (tied := not bool(type_E.any())):
        joint["decoder.weight"] = weights[_WORDS]
        joint[MODERNBERT.named(_WORDS)] = weights[_WORDS] + type_E
    for name in [name for name in joint if ".attn.query." in name]:
        parts = [joint.pop(name.replace(".query.", f".{part}.")) for part in _PARTS]
        joint[name.replace(".query.", ".Wqkv.")] = torch.cat(parts)
    windows = [attention.window for attention in config.attentions if isinstance(attention, LongformerConfig)]
    local = config.rope_theta if config.rope_theta_local is None else config.rope_theta_local
    usual = config.dropout_prob
    keys = MODERNBERT.write(config) | {
        "classifier_activation": _THEIR_ACTIVATIONS[config.activation],
        **dict.fromkeys(_BIASES, config.bias),
        "decoder_bias": True,
        "layer_types": [SLIDING if isinstance(each, LongformerConfig) else FULL for each in config.attentions],
        "local_attention": windows[0] if windows else 128,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": config.rope_theta},
            SLIDING: {"rope_type": "default", "rope_theta": local},
        },
        "classifier_pooling": "mean" if config.pooling == "mean" else "cls",
        "embedding_dropout": usual if config.embedding_dropout_prob is None else config.embedding_dropout_prob,
        "attention_dropout": usual if config.attention_dropout_prob is None else config.attention_dropout_prob,
        "tie_word_embeddings": tied,
        # Its defaults are of a larger vocabulary; a tokenizer's own take their place.
        **dict.fromkeys(f"{role}_token_id" for role in ("bos", "pad", "eos", "cls", "sep")),
    }
    return keys, joint


WRITTEN = {BERT: write_bert, MODERNBERT: write_modernbert, NYSTROMFORMER: write_nystromformer}
"""Those of transformers' own modules that a model can be stored as, the most useful first."""


def completed(form: Format, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with what this project's model has and the format has not: zeros for types of sentences; ModernBERT's
    queries, keys and values apart. Where its input's words are the output's and one vector more, as `write_modernbert`
    leaves them, that vector is the type.
    """
    weights = dict(stored)
    words = weights.get(form.named(_WORDS))
    if form not in (DISTILBERT, MODERNBERT) or words is None:
        return weights
    weights[form.named(_TYPES)] = words.new_zeros(1, words.shape[-1])
    for name in [name for name in weights if _JOINT.fullmatch(name) and len(weights[name]) % 3 == 0]:
        for part, weight in zip(_PARTS, weights.pop(name).chunk(3), strict=True):
            weights[name.replace("Wqkv", part)] = weight
    output = weights.get("decoder.weight", words)
    if output.shape == words.shape:
        added = (words - output).mean(0, keepdim=True)
        rounding = 4 * torch.finfo(words.dtype).eps * words.abs().max()
        if torch.allclose(words, output + added, rtol=0.0, atol=float(rounding)):
            weights |= {form.named(_WORDS): output, form.named(_TYPES): added}
    return weights
