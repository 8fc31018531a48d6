"""The names by which transformers finds the attentions."""

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
from nystromformer.interop.drop_in.calls import DropIn, watch_models

REGISTERED: dict[str, DropIn] = {}
"""All that is registered now, by its name."""


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

    Nothing is added to a model, its weights and their names stay. Padding may stand anywhere. What is no bidirectional
    self-attention over one mask for each token (decoders, cross-attention, position biases, soft caps) is refused in
    its first forward pass, with one sentence. Layers with a sliding window keep their own attention, which the log says
    once. A model that does not use the interface takes the name and keeps its own attention, which the log says after
    its first forward pass; `check` refuses it.

    Args:
        attention: which one, by its name or as a config; None: all that can be, each by its own name.
        name: by which transformers is to find it; None: the attention's own. Several names may have the same
            attention with other parameters. A name that is registered again means the new ones from then on.
        attention_dropout: what happens where a model in training asks for dropout of the weights of pairs of tokens,
            which no method here forms. "refuse": an error that says how to turn it off; "leave_out": it is left out.
        parameters: the attention's, such as `num_landmarks=64`; where `attention` is None, Nyström attention's.

    Returns:
        The names, and which attentions were left out, and why: those with learned parts, which no checkpoint of
        softmax has, and those that do not take a softmax's queries and keys.

    Raises:
        ValueError: an unknown attention, impossible parameters, an attention that has to be left out and was asked for,
            a name that transformers has already.

    >>> print(register("nystrom", name="nystrom-256", num_landmarks=256))
    attn_implementation may be nystrom-256
    """
    check_attention_dropout(attention_dropout)
    if attention is not None:
        configs = [attention_config(attention, **parameters)]
    elif name is None:
        configs = [attention_config(each, **(parameters if each == "nystrom" else {})) for each in ATTENTIONS]
    else:
        raise ValueError(
            f'name = "{name}" can name only one attention: say which, as in register("nystrom", name="{name}")'
        )
    reasons = {config.name: own_keys_refused(config) or learned_parts(config) for config in configs}
    refused = {each: reason for each, reason in reasons.items() if reason is not None}
    asked_for = "nystrom" if attention is None else configs[0].name
    if asked_for in refused:
        raise ValueError(f"{asked_for} cannot replace a trained softmax: {refused[asked_for]}")
    made = {name or config.name: config for config in configs if config.name not in refused}
    for each, config in made.items():
        if each not in REGISTERED and each in ALL_ATTENTION_FUNCTIONS:
            raise ValueError(f'transformers has an attention called "{each}" already: choose another name')
        REGISTERED[each] = drop_in = DropIn(each, config, attention_dropout)
        AttentionInterface.register(each, drop_in.attend)
        AttentionMaskInterface.register(each, drop_in.mask)
    watch_models(REGISTERED)
    return Registered(tuple(made), refused)
