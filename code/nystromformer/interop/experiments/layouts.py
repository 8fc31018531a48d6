"""In which of transformers' forms a model can be stored, so that it computes the same there."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from nystromformer.config import ModelConfig, NystromConfig, SoftmaxConfig
from nystromformer.config.attention import AttentionConfig
from nystromformer.errors import UserError
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.interop.formats.table import BERT, MODERNBERT, NYSTROMFORMER, OWN, WRITTEN, Format
from nystromformer.wording import listed

Code = Literal["auto", "transformers", "file"]
CODES = ("auto", "transformers", "file")
MODULE_FILE = "modeling_nystrom_encoder.py"
_PARTS = {"ForMaskedLM": "mlm.", "ForSequenceClassification": "head.", "Model": "encoder."}
"""The weights that go with the encoder's, by the head of the stored model."""


@dataclass(frozen=True)
class Layout:
    """A config.json of transformers', the weights by its names, and for what input it computes the same."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    with_file: bool
    """Whether a file of code lies beside it, which `trust_remote_code` runs."""
    head: str
    """ForMaskedLM, ForSequenceClassification, or Model of an encoder alone."""
    same: str
    """A sentence."""
    why_not: tuple[str, ...] = ()
    """Where a file lies beside it: why none of transformers' own modules computes the same, a sentence each."""


def lay_out(opened: Opened, code: Code, for_sentences: bool = False) -> Layout:
    """The form of a model.

    Args:
        code: "transformers": its own modules, wherever one computes the same on rows without padding; "file": a file of
            code beside the weights; "auto": transformers' own where it computes the same on all that the model takes,
            or the model's config is to compute what transformers does; else the file.
        for_sentences: of the encoder alone, whose vectors are pooled by others.

    Raises:
        UserError: no form computes the same; says why.
    """
    config, is_bare = opened.config, for_sentences or opened.is_headless
    head = "Model" if is_bare else "ForMaskedLM" if opened.labels is None else "ForSequenceClassification"
    between = opened.between if head == "ForSequenceClassification" else None
    why_not: list[str] = []
    for form in WRITTEN if code != "file" else ():
        if (reason := form.why_not(config, between, has_mlm=head == "ForMaskedLM")) is not None:
            why_not.append(f"{form.title}: {reason}")
        elif form is not NYSTROMFORMER or code == "transformers" or _is_compatible(config.attentions[0]):
            return _own_module(opened, form, head)
    if code == "transformers":
        raise UserError(
            f"{opened.path}: no module of transformers computes the same:{listed(why_not)}\nLeave out --code."
        )
    if (reason := _why_no_file(config)) is not None:
        raise UserError(f"{opened.path}: cannot be exported for transformers: {reason}")
    return _file(opened, head, tuple(why_not))


def _is_compatible(attention: AttentionConfig) -> bool:
    """Whether an attention is told to compute what transformers' Nystromformer computes."""
    return isinstance(attention, NystromConfig) and attention.segments == "padded_unmasked"


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
            unlike["pinv_iterations"] = attention.pinv_iterations > 12  # these are in float64, the file's in float32
        for key in (key for key, is_unlike in unlike.items() if is_unlike):
            return (
                f"layer {number} has {key} {json.dumps(getattr(attention, key))}, which the exported file has not: set "
                "another in config.json's attn_type, or export to onnx or torch"
            )
    return None


def _weights(opened: Opened, head: str) -> dict[str, Tensor]:
    """The weights without heads that nothing else has (sentence order)."""
    return {name: w for name, w in opened.weights.items() if name.startswith(("encoder.", _PARTS[head]))}


def _common(opened: Opened, form: Format, head: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"model_type": form.kind, "architectures": [f"{form.title}{head}"], "dtype": "float32"}
    if head == "ForSequenceClassification" and opened.labels is not None:
        keys["id2label"] = {str(number): label for number, label in enumerate(opened.labels)}
        keys["label2id"] = {label: number for number, label in enumerate(opened.labels)}
        keys["problem_type"] = opened.problem
    return keys


def _own_module(opened: Opened, form: Format, head: str) -> Layout:
    keys, weights = WRITTEN[form](opened.config, _weights(opened, head))
    is_exact = isinstance(opened.config.attentions[0], SoftmaxConfig)
    limits = {
        BERT: "for any length and any padding (positions begin at row 0 there).",
        MODERNBERT: "for any length and any padding.",
        NYSTROMFORMER: "for rows without padding (equal num_landmarks and segment_means_seq_len mean softmax there); "
        "its convolution takes padding in."
        if is_exact
        else f"for rows of exactly {opened.config.max_seq_len} tokens, without padding, and fails, or mixes rows, on "
        "others.",
    }
    same = f"transformers' own {form.title}{head} computes the same {limits[form]}"
    return Layout(_common(opened, form, head) | keys, weights, False, head, same)


def _file(opened: Opened, head: str, why_not: tuple[str, ...]) -> Layout:
    config, module = opened.config, MODULE_FILE.removesuffix(".py")
    # A classification may begin with any of them.
    heads = dict.fromkeys((head, "Model", "ForSequenceClassification"))
    keys = _common(opened, OWN, head) | {
        "auto_map": {
            "AutoConfig": f"{module}.NystromEncoderConfig",
            **{f"Auto{'' if each == 'Model' else 'Model'}{each}": f"{module}.{OWN.title}{each}" for each in heads},
        },
        **{theirs: getattr(config, ours) for ours, theirs in OWN.settings.items()},
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
    return Layout(keys, _weights(opened, head), True, head, same, why_not)


def _attention(attention: AttentionConfig) -> dict[str, Any]:
    if not isinstance(attention, NystromConfig | SoftmaxConfig):
        return attention.model_dump(mode="json")
    keys = ["name", "conv_kernel_size"]
    if isinstance(attention, NystromConfig):
        keys += ["num_landmarks", "landmarks", "pinv_iterations", "pinv_start"]
    return {key: getattr(attention, key) for key in keys}
