"""The table of formats: what other libraries call an encoder's settings and weights, a column each for both ways.

A config.json can be read where the network that is read from it would be written alike (`unlike`), and a network be
written where what would be read again is the same (`Format.why_not`).

Shapes: E width.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nystromformer.config import ModelConfig, NystromConfig
from nystromformer.config.attention import AttentionConfig, what_decides
from nystromformer.config.attention.methods import LongformerConfig
from nystromformer.config.messages import quoted
from nystromformer.config.network import SHAPE_KEYS
from nystromformer.errors import UserError, first_line
from nystromformer.interop.transfer import FIXED, MENTIONED

_MODULES = """
E.word                E.word_embeddings                   E.word_embeddings     E.tok_embeddings E.word_embeddings
E.position            E.position_embeddings               E.position_embeddings -                E.position_embeddings
E.sentence_type       E.token_type_embeddings             E.no_types            E.no_types       E.token_type_embeddings
E.norm                E.LayerNorm                         E.LayerNorm           E.norm           E.norm
E.projection          -                                   -                     -                E.dense
L.attention.query     L.attention.self.query              L.attention.q_lin     L.attn.query     L.mha.W_q
L.attention.key       L.attention.self.key                L.attention.k_lin     L.attn.key       L.mha.W_k
L.attention.value     L.attention.self.value              L.attention.v_lin     L.attn.value     L.mha.W_v
L.attention.output    L.attention.output.dense            L.attention.out_lin   L.attn.Wo        L.mha.ff
L.attention.core.skip L.attention.self.conv               -                     -                L.mha.attn.conv
L.attention_norm      L.attention.output.LayerNorm        L.sa_layer_norm       L.attn_norm      L.norm1
L.feed_forward.up     L.intermediate.dense                L.ffn.lin1            L.mlp.Wi         L.ff1
L.feed_forward.down   L.output.dense                      L.ffn.lin2            L.mlp.Wo         L.ff2
L.feed_forward_norm   L.output.LayerNorm                  L.output_layer_norm   L.mlp_norm       L.norm2
P.final_norm          -                                   -                     P.final_norm     -
mlm.transform         cls.predictions.transform.dense     vocab_transform       head.dense       mlm.dense
mlm.norm              cls.predictions.transform.LayerNorm vocab_layer_norm      head.norm        mlm.norm
mlm.bias              cls.predictions.bias                vocab_projector.bias  decoder.bias     mlm.mlm_class.bias
"""
"""Modules: ours, BERT's, DistilBERT's, ModernBERT's and the authors'; P. is the encoder's prefix, E. its embeddings, L.
one of its layers."""
_SETTINGS = """
vocab_size             vocab_size               vocab_size               vocab_size
num_sen_type           type_vocab_size          -                        -
max_seq_len            max_position_embeddings  max_position_embeddings  max_position_embeddings
embedding_dim          hidden_size              dim                      hidden_size
transformer_dim        hidden_size              dim                      hidden_size
transformer_hidden_dim intermediate_size        hidden_dim               intermediate_size
num_layers             num_hidden_layers        n_layers                 num_hidden_layers
num_head               num_attention_heads      n_heads                  num_attention_heads
activation             hidden_act               activation               hidden_activation
layer_norm_eps         layer_norm_eps           -                        norm_eps
dropout_prob           hidden_dropout_prob      dropout                  -
hidden_dropout_prob    -                        -                        mlp_dropout
"""
"""Keys of the section "model", and of the config.json of BERT, DistilBERT and ModernBERT."""
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
}
"""transformers' names of activations, and this project's. Those of one form of GELU differ in how they compute it."""
_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
_WORDS, _POSITIONS, _TYPES = (f"encoder.embeddings.{each}.weight" for each in ("word", "position", "sentence_type"))
_FULL, _SLIDING = "full_attention", "sliding_attention"
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
    settings: Mapping[str, str] = field(default_factory=dict)
    """Keys of the section "model" by those of its config.json."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Keys of the section "model" that no setting of it changes."""
    output: str = ""
    """The output layer, whose matrix is the word embedding, to which it is tied, and whose bias is the head's."""
    offset: int = 0
    """The row of the table of positions where they begin."""
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

    def why_not(self, config: ModelConfig, head: str) -> str | None:
        """Why a network with such a head (ForMaskedLM, ForSequenceClassification or Model) is none of these; None where
        it is one."""
        leave_out = {"position_offset", "attn_type", "num_landmarks"}  # rows are moved, and attentions compared below
        leave_out |= set() if head == "ForMaskedLM" else {"head_transform"}
        leave_out |= set() if head == "ForSequenceClassification" else {"pooling"}
        if head == "ForSequenceClassification" and "head.dense" not in self.modules:
            return "its classification is another network than the model's"
        if self is NYSTROMFORMER and not isinstance(config.attentions[0], NystromConfig):
            return f"it has Nyström attention, the model {config.attentions[0].name}"
        try:
            section, _ = read_network(self, write_settings(self, config), Path(self.kind), compatible=True)
        except UserError as error:
            return str(error)
        for key in (*FIXED, *MENTIONED):
            theirs, ours = section.get(key, ModelConfig.model_fields[key].default), getattr(config, key)
            if key not in leave_out and theirs != ours:
                return f"it has {key} {quoted(theirs)}, the model {quoted(ours)}"
        attentions = ModelConfig.model_validate(section).attentions, config.attentions
        for layer, (one, other) in enumerate(zip(*attentions, strict=True)):
            if what_decides(one.model_dump()) != what_decides(other.model_dump()):
                return f"it has {_shown(one)} in layer {layer}, the model {_shown(other)}"
        return None


def _shown(attention: AttentionConfig) -> str:
    return quoted({"name": attention.name, **attention.model_dump(mode="json", exclude_defaults=True)})


def _column(table: str, number: int, prefix: str = "", layer: str = "") -> dict[str, str]:
    """Ours by theirs of one column."""
    rows = [line.split() for line in table.strip().splitlines()]

    def written_out(name: str, prefix: str, layer: str) -> str:
        places = {"P.": prefix, "E.": f"{prefix}embeddings.", "L.": prefix + layer}
        return places.get(name[:2], name[:2]) + name[2:]

    return {
        written_out(row[0], "encoder.", "layers.{}."): written_out(row[number], prefix, layer)
        for row in rows
        if row[number] != "-"
    }


_BERT_SETTINGS = _column(_SETTINGS, 1)
_POST_NORM: dict[str, object] = {
    "norm": "post",
    "norm_type": "layer_norm",
    "embedding_norm": True,
    "feed_forward": "mlp",
    "bias": True,
    "positions": "learned",
    "reversible": False,
}
BERT = Format(
    "bert",
    "Bert",
    prefix="bert.",
    modules=_column(_MODULES, 1, "bert.", "encoder.layer.{}.")
    | {"head.dense": "bert.pooler.dense", "head.classifier": "classifier"},
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM,
    output="cls.predictions.decoder",
)
ROBERTA = Format(
    "roberta",
    "Roberta",
    prefix="roberta.",
    modules=_column(_MODULES, 1, "roberta.", "encoder.layer.{}.")
    | {"mlm.transform": "lm_head.dense", "mlm.norm": "lm_head.layer_norm", "mlm.bias": "lm_head.bias"},
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM | {"activation": "gelu"},  # that of its head, whatever the layers have
    output="lm_head.decoder",
)
DISTILBERT = Format(
    "distilbert",
    "DistilBert",
    prefix="distilbert.",
    modules=_column(_MODULES, 2, "distilbert.", "transformer.layer.{}."),
    settings=_column(_SETTINGS, 2),
    fixed=_POST_NORM | {"layer_norm_eps": 1e-12, "num_sen_type": 1},
    output="vocab_projector",
    inner=("embeddings.", "transformer."),
)
"""It has no types of sentences."""
NYSTROMFORMER = Format(
    "nystromformer",
    "Nystromformer",
    prefix="nystromformer.",
    modules=_column(_MODULES, 1, "nystromformer.", "encoder.layer.{}."),
    settings=_BERT_SETTINGS,
    fixed=_POST_NORM,
    output="cls.predictions.decoder",
    offset=2,
)
MODERNBERT = Format(
    "modernbert",
    "ModernBert",
    prefix="model.",
    modules=_column(_MODULES, 3, "model.", "layers.{}."),
    settings=_column(_SETTINGS, 3),
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
        "dropout_prob": 0.0,
    },
    output="decoder",
    inner=("",),
)
"""Once `completed` has cut its one map of queries, keys and values into three. It has no types of sentences."""
OWN = Format(
    "nystrom_encoder",
    "NystromEncoder",
    prefix="encoder.",
    modules={"encoder": "encoder", "mlm": "mlm"},
    inner=("",),
)
"""What this project exports with a file of code, whose config.json has the keys of the section "model"."""
AUTHORS = Format(
    "authors",
    "",
    prefix="model.",
    modules=_column(_MODULES, 4, "model.", "transformer_{}."),
    settings={key: key for key in (*SHAPE_KEYS, "max_seq_len")},
    output="mlm.mlm_class",
    inner=("",),
)
FORMATS = {each.kind: each for each in (NYSTROMFORMER, BERT, ROBERTA, DISTILBERT, MODERNBERT, OWN)}
WRITTEN = (BERT, MODERNBERT, NYSTROMFORMER)
"""Those of transformers' own modules that a model can be stored as, the most useful first."""
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
_FIXED_KEYS = ("is_decoder", "add_cross_attention", "position_embedding_type", *_BIASES, "decoder_bias")


def read_network(
    form: Format, full: Mapping[str, Any], path: Path, compatible: bool
) -> tuple[dict[str, Any], list[str]]:
    """The section "model" of a config.json in a format, with all its keys; and what is to be said of it.

    Args:
        compatible: with the attention as the source computes it, for the input that it takes; else with one that takes
            any length and any padding.
    """
    if form is OWN:
        return {key: value for key, value in full.items() if key in ModelConfig.model_fields}, []
    section: dict[str, Any] = {ours: full[theirs] for ours, theirs in form.settings.items()}
    section["activation"] = ACTIVATIONS.get(section["activation"], section["activation"])
    section |= {"head_dim": section["transformer_dim"] // max(1, section["num_head"]), **form.fixed}
    if form is NYSTROMFORMER:
        attention = {"segments": "padded_unmasked", "pinv_start": "batch"} if compatible else None
        sizes = full["num_landmarks"], full["segment_means_seq_len"], full["conv_kernel_size"]
        return _nystrom(section | {"position_offset": form.offset}, sizes, attention, "segment_means_seq_len", path)
    if form is MODERNBERT:
        local = {"name": "longformer", "window": 2 * (full["local_attention"] // 2), "num_global_tokens": 0}
        theta = {kind: float(full["rope_parameters"][kind]["rope_theta"]) for kind in (_FULL, _SLIDING)}
        section |= {
            "attn_type": ["softmax" if kind == _FULL else local for kind in full["layer_types"]],
            "bias": full["mlp_bias"],
            "rope_theta": theta[_FULL],
            "rope_theta_local": theta[_SLIDING] if _SLIDING in full["layer_types"] else None,
            "pooling": "mean" if full["classifier_pooling"] == "mean" else "first",
            "embedding_dropout_prob": float(full["embedding_dropout"]),
            "attention_dropout_prob": float(full["attention_dropout"]),
        }
    else:
        offset = full["pad_token_id"] + 1 if form is ROBERTA else 0
        section |= {"position_offset": offset, "attn_type": "softmax"}
        section["max_seq_len"] -= offset
    return section, []


def read_authors(section: Mapping[str, Any], path: Path, compatible: bool) -> tuple[dict[str, Any], list[str]]:
    """The section "model" of the authors' config.json, as `read_network`."""
    name = section.get("attn_type")
    needed = [*AUTHORS.settings, "attn_type", *(("num_landmarks", "seq_len") if name == "nystrom" else ())]
    if missing := [key for key in needed if key not in section]:
        raise UserError(f"{path}: expected the section model of the authors' code, found no {', '.join(missing)}")
    if name not in ("nystrom", "softmax"):
        raise UserError(f"{path}: attn_type: expected nystrom or softmax, found {name!r}")
    model = {key: section[key] for key in (*AUTHORS.settings, "num_sen_type", "dropout_prob") if key in section}
    if name == "softmax":
        return model | {"attn_type": "softmax"}, []
    landmarks, length, notes = section["num_landmarks"], section["seq_len"], []
    if all(isinstance(value, int) for value in (landmarks, length)) and landmarks > length:
        # No segment would have a token: their code cannot compute it, so that the two must have been swapped.
        notes = [f"num_landmarks = {landmarks} and seq_len = {length} of {path} are taken to be swapped"]
        landmarks, length = length, landmarks
    start = "matrix" if section.get("inv_init_coeff_option", "original") != "original" else "batch"
    attention = {"segments": "padded", "pinv_start": start} if compatible else None
    taps = section.get("conv_kernel_size")
    network, more = _nystrom(model, (landmarks, length, taps), attention, "seq_len", path)
    return network, notes + more


def _nystrom(
    model: dict[str, Any], sizes: tuple[Any, Any, Any], attention: dict[str, str] | None, length_key: str, path: Path
) -> tuple[dict[str, Any], list[str]]:
    """A network with landmarks, a length and taps; its attention is the source's, with segments for rows so long, or
    (None) this project's own."""
    landmarks, length, taps = sizes
    if not all(type(value) is int and value > 0 for value in (landmarks, length)):
        found = f"num_landmarks {landmarks!r}, {length_key} {length!r}"
        raise UserError(f"{path}: expected positive integers, found {found}")
    if length % landmarks:
        raise UserError(
            f"{path}: num_landmarks = {landmarks} does not divide {length_key} = {length}: the source's code cannot "
            "compute it"
        )
    model = model | ({} if taps is None else {"conv_kernel_size": taps})
    if landmarks == length:
        same = f"num_landmarks = {length_key} = {landmarks}: the source computes exact softmax attention"
        return model | {"attn_type": "softmax"}, [f'{same}, without landmarks; attn_type is "softmax"']
    if attention is None:
        return model | {"attn_type": "nystrom", "num_landmarks": landmarks}, []
    theirs = {"name": "nystrom", "num_landmarks": landmarks, **attention}
    said = f"it takes {length} tokens and no others, as the source"
    return model | {"attn_type": theirs, "max_seq_len": length}, [said]


def with_defaults(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What transformers reads in a config.json: of keys that are left out, its defaults."""
    from transformers import CONFIG_MAPPING

    try:
        full: dict[str, Any] = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config)).to_dict()
    except Exception as error:  # the library's checks raise errors of several kinds
        raise UserError(f"{path}: transformers cannot read it: {first_line(error)}") from error
    return full


def write_settings(form: Format, config: ModelConfig) -> dict[str, Any]:
    """The keys of a config.json: the inverse of `read_network`, for networks of which a format has all."""
    keys = {theirs: getattr(config, ours) for ours, theirs in form.settings.items()}
    keys[form.settings["activation"]] = _THEIR_ACTIVATIONS[config.activation]
    if form is MODERNBERT:
        windows = [attention.window for attention in config.attentions if isinstance(attention, LongformerConfig)]
        local = config.rope_theta if config.rope_theta_local is None else config.rope_theta_local
        usual = config.dropout_prob
        return keys | {
            "classifier_activation": keys["hidden_activation"],
            **dict.fromkeys(_BIASES, config.bias),
            "decoder_bias": True,
            "layer_types": [_SLIDING if isinstance(each, LongformerConfig) else _FULL for each in config.attentions],
            "local_attention": windows[0] if windows else 128,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in ((_FULL, config.rope_theta), (_SLIDING, local))
            },
            "classifier_pooling": "mean" if config.pooling == "mean" else "cls",
            "embedding_dropout": usual if config.embedding_dropout_prob is None else config.embedding_dropout_prob,
            "attention_dropout": usual if config.attention_dropout_prob is None else config.attention_dropout_prob,
        }
    if form is ROBERTA:
        keys["max_position_embeddings"] += config.position_offset
    if form is NYSTROMFORMER and isinstance(config.attentions[0], NystromConfig):
        keys |= {
            "num_landmarks": config.attentions[0].num_landmarks,
            "segment_means_seq_len": config.max_seq_len,
            "conv_kernel_size": config.attentions[0].conv_kernel_size,
        }
    # Attention weights have no dropout here.
    return keys | {"attention_probs_dropout_prob": 0.0}


def unlike(form: Format, full: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """What of a config.json the network that was read from it has not: each key, with what was expected."""
    written: dict[str, Any] = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}
    written |= write_settings(form, config)
    keys = (*written.keys() & {form.settings["activation"], "classifier_activation", "layer_types"}, *_FIXED_KEYS)
    pairs = {key: (written[key], full[key]) for key in keys if key in written and key in full}
    for kind in set(full.get("layer_types", ())) & {_FULL, _SLIDING}:
        pairs[f"rope_parameters.{kind}"] = written["rope_parameters"][kind], full["rope_parameters"].get(kind)
    return [
        f"{key}: expected {quoted(expected)}, found {quoted(found)}"
        for key, (expected, found) in pairs.items()
        if ACTIVATIONS.get(str(found), found) != ACTIVATIONS.get(str(expected), expected)
    ]


def write_network(
    form: Format, config: ModelConfig, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A network as a format has it: the keys of config.json, and the weights."""
    keys = write_settings(form, config)
    moved = dict(weights)
    if form is not MODERNBERT:
        table_PE, offset = moved[_POSITIONS], config.position_offset
        if offset != form.offset:
            unused_PE = table_PE.new_zeros(form.offset, table_PE.shape[1])
            moved[_POSITIONS] = torch.cat([unused_PE, table_PE[offset:]])
        stored = {form.named(name): weight for name, weight in moved.items()}
        if form is BERT and not any(name.startswith(("mlm.", "head.")) for name in weights):
            # BertModel alone has a pooler, which would get random weights, with a warning.
            width = config.transformer_dim
            stored |= {"bert.pooler.dense.weight": torch.eye(width), "bert.pooler.dense.bias": torch.zeros(width)}
        return keys, stored
    # The one type of sentences is part of every token there; the output knows the tokens without it.
    type_E = moved.pop(_TYPES)[0]
    stored = {form.named(name): weight for name, weight in moved.items()}
    if not (tied := not bool(type_E.any())):
        stored |= {"decoder.weight": weights[_WORDS], form.named(_WORDS): weights[_WORDS] + type_E}
    for name in [name for name in stored if ".attn.query." in name]:
        parts = [stored.pop(name.replace(".query.", f".{part}.")) for part in _PARTS]
        stored[name.replace(".query.", ".Wqkv.")] = torch.cat(parts)
    # Its defaults of special tokens are of a larger vocabulary; a tokenizer's own take their place.
    special = dict.fromkeys(f"{role}_token_id" for role in ("bos", "pad", "eos", "cls", "sep"))
    return keys | {"tie_word_embeddings": tied, **special}, stored


def completed(form: Format, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with what this project's model has and the format has not: zeros for types of sentences; ModernBERT's
    queries, keys and values apart."""
    weights = dict(stored)
    words = weights.get(form.named(_WORDS))
    if form not in (DISTILBERT, MODERNBERT) or words is None:
        return weights
    weights[form.named(_TYPES)] = words.new_zeros(1, words.shape[-1])
    for name in [name for name in weights if _JOINT.fullmatch(name) and len(weights[name]) % 3 == 0]:
        for part, weight in zip(_PARTS, weights.pop(name).chunk(3), strict=True):
            weights[name.replace("Wqkv", part)] = weight
    return weights
