"""What others call the weights: this project's names beside those of transformers' models and of the authors' code."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_LAYER = "encoder.layers.{}."
_OF_BERT = {
    "encoder.embeddings.word": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.sentence_type": "embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "embeddings.LayerNorm",
    _LAYER + "attention.query": "encoder.layer.{}.attention.self.query",
    _LAYER + "attention.key": "encoder.layer.{}.attention.self.key",
    _LAYER + "attention.value": "encoder.layer.{}.attention.self.value",
    _LAYER + "attention.output": "encoder.layer.{}.attention.output.dense",
    _LAYER + "attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    _LAYER + "feed_forward.up": "encoder.layer.{}.intermediate.dense",
    _LAYER + "feed_forward.down": "encoder.layer.{}.output.dense",
    _LAYER + "feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
}
"""Modules of an encoder as BERT's, below the model's own prefix."""
_CONVOLUTION = {_LAYER + "attention.core.skip": "encoder.layer.{}.attention.self.conv"}
_BERT_MLM = {
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
}
_ROBERTA_HEAD = {"head.dense": "classifier.dense", "head.classifier": "classifier.out_proj"}


def _below(prefix: str, modules: Mapping[str, str]) -> dict[str, str]:
    return {ours: prefix + theirs for ours, theirs in modules.items()}


@dataclass(frozen=True)
class Names:
    """The modules of one kind of model, ours by theirs; `{}` stands for a layer's number."""

    prefix: str
    """Of the encoder's weights; a model without a head is also stored without it."""
    encoder: Mapping[str, str]
    mlm: Mapping[str, str]
    head: Mapping[str, str]
    """Of a classification."""
    word_copies: tuple[str, ...] = ()
    """Where else the word embedding is stored: the output matrix is tied to it."""
    bias_copies: tuple[str, ...] = ()
    """Where else the output's bias is."""
    ignored: tuple[str, ...] = field(default=("position_ids", "token_type_ids"))
    """Ends of names that are constants, stored by earlier versions."""

    def theirs(self, name: str) -> str | None:
        """What they call a weight of ours; None where they have none such."""
        for modules in (self.encoder, self.mlm, self.head):
            for ours, theirs in modules.items():
                layer = _match(ours, name)
                if layer is not None:
                    return theirs.format(layer) + name[len(ours.format(layer)) :]
        return None


def _match(ours: str, name: str) -> str | None:
    """The layer's number if a weight is of this module, "" for one that is of no layer; None for another's."""
    if "{}" not in ours:
        return "" if name == ours or name.startswith(ours + ".") else None
    head, tail = ours.split("{}")
    if not name.startswith(head):
        return None
    layer, _, rest = name[len(head) :].partition(".")
    return layer if layer.isdecimal() and f".{rest}".startswith(tail + ".") else None


NYSTROMFORMER = Names(
    prefix="nystromformer.",
    encoder=_below("nystromformer.", _OF_BERT | _CONVOLUTION),
    mlm=_BERT_MLM,
    head=_ROBERTA_HEAD,
    word_copies=("cls.predictions.decoder.weight",),
    bias_copies=("cls.predictions.decoder.bias",),
)
BERT = Names(
    prefix="bert.",
    encoder=_below("bert.", _OF_BERT),
    mlm=_BERT_MLM,
    head={"head.dense": "bert.pooler.dense", "head.classifier": "classifier"},
    word_copies=("cls.predictions.decoder.weight",),
    bias_copies=("cls.predictions.decoder.bias",),
)
ROBERTA = Names(
    prefix="roberta.",
    encoder=_below("roberta.", _OF_BERT),
    mlm={"mlm.transform": "lm_head.dense", "mlm.norm": "lm_head.layer_norm", "mlm.bias": "lm_head.bias"},
    head=_ROBERTA_HEAD,
    word_copies=("lm_head.decoder.weight",),
    bias_copies=("lm_head.decoder.bias",),
)
OWN = Names(
    prefix="encoder.",
    encoder={"encoder": "encoder"},
    mlm={"mlm": "mlm"},
    head={"head": "head"},
)
"""Of the folders that this project exports with a file of code."""
_MODERN_LAYER = "model.layers.{}."
MODERNBERT = Names(
    prefix="model.",
    encoder={
        "encoder.embeddings.word": "model.embeddings.tok_embeddings",
        "encoder.embeddings.sentence_type": "model.embeddings.type_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        _LAYER + "attention.query": _MODERN_LAYER + "attn.query",
        _LAYER + "attention.key": _MODERN_LAYER + "attn.key",
        _LAYER + "attention.value": _MODERN_LAYER + "attn.value",
        _LAYER + "attention.output": _MODERN_LAYER + "attn.Wo",
        _LAYER + "attention_norm": _MODERN_LAYER + "attn_norm",
        _LAYER + "feed_forward.up": _MODERN_LAYER + "mlp.Wi",
        _LAYER + "feed_forward.down": _MODERN_LAYER + "mlp.Wo",
        _LAYER + "feed_forward_norm": _MODERN_LAYER + "mlp_norm",
        "encoder.final_norm": "model.final_norm",
    },
    mlm={"mlm.transform": "head.dense", "mlm.norm": "head.norm", "mlm.bias": "decoder.bias"},
    head={"head.dense": "classification.dense", "head.classifier": "classification.classifier"},
    word_copies=("decoder.weight",),
)
"""transformers' ModernBERT, once `modernbert.separated` has cut its one map of queries, keys and values into three. It
has no types of sentences, and no classification as this project's."""
_THEIR_LAYER = "model.transformer_{}."
AUTHORS = Names(
    prefix="model.",
    encoder={
        "encoder.embeddings.word": "model.embeddings.word_embeddings",
        "encoder.embeddings.position": "model.embeddings.position_embeddings",
        "encoder.embeddings.sentence_type": "model.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.embeddings.projection": "model.embeddings.dense",
        _LAYER + "attention.query": _THEIR_LAYER + "mha.W_q",
        _LAYER + "attention.key": _THEIR_LAYER + "mha.W_k",
        _LAYER + "attention.value": _THEIR_LAYER + "mha.W_v",
        _LAYER + "attention.output": _THEIR_LAYER + "mha.ff",
        _LAYER + "attention.core.skip": _THEIR_LAYER + "mha.attn.conv",
        _LAYER + "attention_norm": _THEIR_LAYER + "norm1",
        _LAYER + "feed_forward.up": _THEIR_LAYER + "ff1",
        _LAYER + "feed_forward.down": _THEIR_LAYER + "ff2",
        _LAYER + "feed_forward_norm": _THEIR_LAYER + "norm2",
    },
    mlm={"mlm.transform": "mlm.dense", "mlm.norm": "mlm.norm", "mlm.bias": "mlm.mlm_class.bias"},
    # Their own spelling.
    head={"head.dense": "sen_classifer.dense", "head.classifier": "sen_classifer.classifer"},
    word_copies=("mlm.mlm_class.weight",),
)
