"""Attentions by name."""

import importlib
from functools import cache

from nystromformer.attention.base import Attention
from nystromformer.config.attention import AttentionConfig, attention_config


@cache
def attention_class(config: type[AttentionConfig]) -> type[Attention]:
    """The module's class that a config's class configures: `XAttention` in `nystromformer/attention/x.py` for `XConfig`
    in `nystromformer/config/attention/x.py`.
    """
    module = importlib.import_module(f"{__package__}.{config.__module__.rpartition('.')[2]}")
    found = getattr(module, f"{config.__name__.removesuffix('Config')}Attention")
    assert issubclass(found, Attention)
    return found


def create_attention(
    name: str | AttentionConfig,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int | None = None,
    **parameters: object,
) -> Attention:
    """An attention module by name, or from a validated config.

    Args:
        name: one of the names in `nystromformer.config.attention.ATTENTIONS`, or an AttentionConfig.
        num_heads: H.
        head_dim: D.
        max_length: tokens of the longest input, for methods that learn something for each place (`needs.max_length`);
            others take any length.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: an unknown name (lists the valid ones), unknown or impossible parameters, or no `max_length` where
            the method needs one.

    >>> attention = create_attention("nystrom", num_heads=12, head_dim=64, num_landmarks=64, conv_kernel_size=33)
    """
    config = attention_config(name, **parameters)
    build = attention_class(type(config))
    if not build.needs.max_length:
        return build(config, num_heads, head_dim)
    if max_length is None:
        raise ValueError(
            f"{config.name} learns weights for each position: expected max_length, the number of tokens of the "
            "longest input"
        )
    return build(config, num_heads, head_dim, max_length)  # type: ignore[call-arg]
