"""In which of transformers' forms a model can be stored, so that it computes the same there."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nystromformer.config import NystromConfig, SoftmaxConfig
from nystromformer.config.attention import AttentionConfig
from nystromformer.errors import UserError
from nystromformer.interop.experiments.open_model import Opened
from nystromformer.interop.formats.table import BERT, MODERNBERT, NYSTROMFORMER, OWN, WRITTEN, Format

MODULE_FILE = "modeling_nystrom_encoder.py"
_PARTS = {"ForMaskedLM": "mlm.", "ForSequenceClassification": "head.", "Model": "encoder."}
"""The weights that go with the encoder's, by the head of the stored model."""
_LIMITS = {
    BERT: "for any length and any padding (positions begin at row 0 there).",
    MODERNBERT: "for any length and any padding.",
    NYSTROMFORMER: "for rows of exactly {} tokens, without padding, and fails, or mixes rows, on others.",
}


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


def lay_out(opened: Opened, for_sentences: bool = False) -> Layout:
    """The form of a model: transformers' own module where one computes the same on all that the model takes, or the
    model's config is to compute what transformers does; else a file of code beside the weights.

    Args:
        for_sentences: of the encoder alone, whose vectors are pooled by others.

    Raises:
        UserError: no form computes the same; says why.
    """
    config, is_bare = opened.config, for_sentences or opened.is_headless
    head = "Model" if is_bare else "ForMaskedLM" if opened.labels is None else "ForSequenceClassification"
    # Without heads that nothing else has (sentence order).
    weights = {name: w for name, w in opened.weights.items() if name.startswith(("encoder.", _PARTS[head]))}
    why_not: list[str] = []
    for form, write in WRITTEN.items():
        if (reason := form.why_not(config, head)) is None:
            keys, renamed = write(config, weights)
            limit = _LIMITS[form].format(config.max_seq_len)
            same = f"transformers' own {form.title}{head} computes the same {limit}"
            return Layout(_common(opened, form, head) | keys, renamed, False, head, same)
        why_not.append(f"{form.title}: {reason}")
    if config.reversible:
        raise UserError(
            f"{opened.path}: cannot be exported for transformers: reversible layers are another network than the "
            "exported file's"
        )
    for number, attention in enumerate(config.attentions):
        if attention.num_projections < 3:
            raise UserError(
                f"{opened.path}: cannot be exported for transformers: layer {number} has {attention.name} attention; "
                "the exported file projects queries, keys and values, each by itself"
            )
    return _file(opened, head, weights, tuple(why_not))


def _common(opened: Opened, form: Format, head: str) -> dict[str, Any]:
    keys: dict[str, Any] = {"model_type": form.kind, "architectures": [f"{form.title}{head}"], "dtype": "float32"}
    if head == "ForSequenceClassification" and opened.labels is not None:
        keys["id2label"] = {str(number): label for number, label in enumerate(opened.labels)}
        keys["label2id"] = {label: number for number, label in enumerate(opened.labels)}
        keys["problem_type"] = opened.problem
    return keys


def _file(opened: Opened, head: str, weights: dict[str, Tensor], why_not: tuple[str, ...]) -> Layout:
    config, module = opened.config, MODULE_FILE.removesuffix(".py")
    # A classification may begin with any of them.
    heads = dict.fromkeys((head, "Model", "ForSequenceClassification"))
    keys = _common(opened, OWN, head) | {
        "auto_map": {
            "AutoConfig": f"{module}.NystromEncoderConfig",
            **{f"Auto{'' if each == 'Model' else 'Model'}{each}": f"{module}.{OWN.title}{each}" for each in heads},
        },
        **{theirs: getattr(config, ours) for ours, theirs in OWN.settings.items()},
        "attentions": [_attention(attention) for attention in config.attentions],
        "local_layers": [attention.is_local for attention in config.attentions],
    }
    same = (
        f"`{MODULE_FILE}`, one file of plain PyTorch that `trust_remote_code=True` runs, computes the same for any "
        "length and any padding. It is for inference: it has a loss, and no dropout."
    )
    if others := sorted({each.name for each in config.attentions if not _is_in_file(each)}):
        same += (
            f" It needs the package nystromformer installed, for {' and '.join(others)}: `pip install -e .` in a clone."
        )
    return Layout(keys, weights, True, head, same, why_not)


def _is_in_file(attention: AttentionConfig) -> bool:
    """Whether the file of code computes an attention by itself."""
    special = attention.model_dump(exclude_defaults=True).keys() - {"name", "implementation"}
    return isinstance(attention, NystromConfig | SoftmaxConfig) and special <= {"num_landmarks", "conv_kernel_size"}


def _attention(attention: AttentionConfig) -> dict[str, Any]:
    keys = {"name", "conv_kernel_size", "num_landmarks"} if _is_in_file(attention) else None
    return attention.model_dump(mode="json", include=keys)
