"""Attentions by name."""

from torch import nn

from nystromformer.attention.base import Attention
from nystromformer.attention.nystrom import NystromAttention
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.config.attention import AttentionConfig, NystromConfig, SoftmaxConfig, attention_config

MODULES: dict[type[AttentionConfig], type[Attention]] = {
    SoftmaxConfig: SoftmaxAttention,
    NystromConfig: NystromAttention,
}


def create_attention(name: str | AttentionConfig, *, num_heads: int, head_dim: int, **parameters: object) -> Attention:
    """An attention module by name, or from a validated config.

    Args:
        name: one of the names in `nystromformer.config.attention.ATTENTIONS`, or an AttentionConfig.
        num_heads: H.
        head_dim: D.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: an unknown name (lists the valid ones), unknown or impossible parameters.

    >>> attention = create_attention("nystrom", num_heads=12, head_dim=64, num_landmarks=64, conv_kernel_size=33)
    """
    if isinstance(name, AttentionConfig):
        if parameters:
            raise ValueError(f"parameters stand in the config already, found also {sorted(parameters)}")
        config = name
    else:
        config = attention_config(name, **parameters)
    build: type[nn.Module] = MODULES[type(config)]
    module = build(num_heads=num_heads, head_dim=head_dim, **config.model_dump(exclude={"name"}))
    assert isinstance(module, Attention)
    return module
