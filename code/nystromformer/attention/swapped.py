"""An attention in the place of a softmax that is there already, and trained: which one, and by what mask.

Shapes: B batch, N tokens.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from nystromformer.attention.registry import attention_class
from nystromformer.attention.tracing import is_plain
from nystromformer.config.attention import AttentionConfig

AttentionDropout = Literal["refuse", "leave_out"]
"""What happens where dropout of the weights of pairs of tokens is asked for, which are never formed."""

_NOTHING = -1000.0
"""What an additive mask takes away at the least from what it hides: exp(-1000) is zero in every precision."""


def own_keys_refused(config: AttentionConfig) -> str | None:
    """Why the method cannot take a softmax's projections over: it has no use for queries or for keys of their own."""
    needs = attention_class(type(config)).needs
    if needs.shared_query_key:
        return "it makes its keys of the queries, and the softmax has keys of their own"
    if needs.no_key:
        return "it does not look at the keys, which the softmax was trained with"
    return None


def learned_parts(config: AttentionConfig) -> str | None:
    """What of the method would have to be learned first; None where it has no weights of its own."""
    if config.conv_kernel_size is not None:
        return f"its convolution of {config.conv_kernel_size} taps is learned"
    if config.learns_weights:
        return "it has weights of its own, which are learned"
    return None


def check_attention_dropout(value: str) -> None:
    """Raises ValueError where it is none of `AttentionDropout`."""
    if value not in get_args(AttentionDropout):
        raise ValueError(f'attention_dropout must be one of {", ".join(get_args(AttentionDropout))}, found "{value}"')


def kept_of_additive(bias_BN: Tensor) -> Tensor:
    """The mask, bool (B, N) with True = keep, that is meant by what is added to the scores of the keys.

    Args:
        bias_BN: zero where the token counts, -inf or at most -1000 where it does not.

    Raises:
        ValueError: other numbers, which are biases; a RuntimeError where one would have to wait for them.
    """
    keep_BN = bias_BN == 0
    is_mask = (keep_BN | (bias_BN <= _NOTHING)).all()
    text = (
        "a mask of numbers may have zero where a token counts and -inf (or at most -1000) where it does not; biases "
        "of the scores cannot be added: the N x N scores are never formed"
    )
    if bias_BN.device.type == "cpu" and not is_plain():
        if not is_mask:
            raise ValueError(text)
    else:
        torch._assert_async(is_mask, text)
    return keep_BN
