"""The names by which transformers finds the attentions."""

import re
from dataclasses import dataclass

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nystromformer.attention.swapped import (
    AttentionDropout,
    check_attention_dropout,
    learned_parts,
    own_keys_refused,
)
from nystromformer.config.attention import ATTENTIONS, AttentionConfig, attention_config
from nystromformer.interop.drop_in.calls import DropIn
from nystromformer.interop.drop_in.watch import watch_models

REGISTERED: dict[str, DropIn] = {}
"""All that is registered now, by its name."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.=,-]*")
_TAKEN_WORDS = ("flash", "sdpa", "flex_attention", "eager", "paged")
"""What transformers reads a meaning into, wherever in a name it stands."""


@dataclass(frozen=True)
class Registered:
    """What `register` did."""

    names: tuple[str, ...]
    """What `attn_implementation` may be now."""
    refused: dict[str, str]
    """The attentions that were left out, each with the reason."""

    def __str__(self) -> str:
        lines = [f"attn_implementation may be {', '.join(self.names)}"]
        return "\n".join([*lines, *(f"{name} cannot: {reason}" for name, reason in self.refused.items())])


def register(
    attention: str | AttentionConfig | None = None,
    *,
    name: str | None = None,
    attention_dropout: AttentionDropout = "refuse",
    **parameters: object,
) -> Registered:
    """Register attentions with transformers, for every bidirectional model there that goes through its interface:
    `AutoModel.from_pretrained(..., attn_implementation="nystrom")`.

    `near_far` is nearest to a trained softmax (`report_error` measures the error on your model and batch). With
    "nystrom" a row of at most `num_landmarks` tokens gets softmax attention itself, with "near_far" one of at most
    (neighbours + 1) · block_size.

    Nothing is added to a model, its weights and their names stay. Padding may stand anywhere. What is no bidirectional
    self-attention over one mask for each token (decoders, cross-attention, position biases, soft caps) is refused in
    its first forward pass, with one sentence. Layers with a sliding window keep their own attention, which the log says
    once. transformers does not check that a model uses its interface: one that takes the name and computes its own
    attention keeps it, its padding included, and the log says so after its first forward pass; `check` refuses it.

    Args:
        attention: which one, by its name or as a config; None: all that can be, each by its own name.
        name: by which transformers is to find it; None: the attention's own. Several names may have the same
            attention with other parameters. A name that is registered again means the new ones from then on, in models
            that were loaded before, too.
        attention_dropout: what happens where a model in training asks for dropout of the weights of pairs of tokens,
            which no method here forms. "refuse": an error that says how to turn it off; "leave_out": it is left out.
        parameters: the attention's, such as `num_landmarks=64`; where `attention` is None, Nyström attention's.

    Returns:
        The names, and which attentions were left out, and why: those with learned parts, which no checkpoint of
        softmax has, and those that do not take a softmax's queries and keys.

    Raises:
        ValueError: an unknown attention, impossible parameters, an attention that has to be left out and was asked for,
            a name that transformers has already or would misread.

    >>> print(register("nystrom", name="nystrom-256", num_landmarks=256))
    attn_implementation may be nystrom-256
    """
    check_attention_dropout(attention_dropout)
    if attention is not None:
        config = attention_config(attention, **parameters)
        reason = why_not(config)
        if reason is not None:
            raise ValueError(f"{config.name} cannot replace a trained softmax: {reason}")
        _register(config.name if name is None else name, config, attention_dropout)
        return Registered((config.name if name is None else name,), {})
    if name is not None:
        raise ValueError(
            f'name = "{name}" can name only one attention: say which, as in register("nystrom", name="{name}")'
        )
    configs = {each: attention_config(each, **(parameters if each == "nystrom" else {})) for each in ATTENTIONS}
    refused = {each: reason for each, config in configs.items() if (reason := why_not(config)) is not None}
    if "nystrom" in refused:
        raise ValueError(f"nystrom cannot replace a trained softmax: {refused['nystrom']}")
    names = tuple(each for each in configs if each not in refused)
    for each in names:
        _register(each, configs[each], attention_dropout)
    return Registered(names, refused)


def why_not(config: AttentionConfig) -> str | None:
    """Why an attention cannot stand in for a softmax in a model that has no weights for it; None where it can."""
    return own_keys_refused(config) or learned_parts(config)


def _register(name: str, config: AttentionConfig, attention_dropout: AttentionDropout) -> None:
    if not _NAME.fullmatch(name) or any(word in name for word in _TAKEN_WORDS):
        raise ValueError(
            "expected a name of letters, digits and _ . = , - that begins with a letter and has none of "
            f'{", ".join(_TAKEN_WORDS)} in it, which have a meaning in transformers; found "{name}"'
        )
    if name not in REGISTERED and name in ALL_ATTENTION_FUNCTIONS:
        raise ValueError(f'transformers has an attention called "{name}" already: choose another name')
    REGISTERED[name] = made = DropIn(name, config, attention_dropout)
    AttentionInterface.register(name, made.attend)
    AttentionMaskInterface.register(name, made.mask)
    watch_models(REGISTERED)
