"""The longest input, which some methods have to know."""

from collections.abc import Iterable

from nystromformer.attention import attention_class
from nystromformer.config import AttentionConfig


def check_max_length(attentions: Iterable[AttentionConfig], max_length: int | None) -> None:
    """Raises ValueError where a method learns something for each place and `max_length` is missing, or none does and it
    was given, or it is no number of tokens."""
    attentions = tuple(attentions)
    learned = [each.name for each in attentions if attention_class(type(each)).needs.max_length]
    if learned and max_length is None:
        raise ValueError(
            f"{learned[0]} learns weights for each position: expected max_length, the number of tokens of the longest "
            "input"
        )
    if max_length is not None and not learned:
        names = " and ".join(dict.fromkeys(each.name for each in attentions))
        raise ValueError(f"max_length = {max_length} has no effect: {names} takes input of any length; remove it")
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length must be at least 1, found {max_length}")
