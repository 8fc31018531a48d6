"""Linformer with a convolution in the place of its projections."""

from typing import Literal

from ..ranges import Size
from .base import AttentionConfig


class ConvLinformerConfig(AttentionConfig):
    """Linformer with a strided convolution instead of its projections, for any length: softmax attention to learned
    weighted sums of consecutive tokens."""

    counts_tokens = ("stride",)

    name: Literal["conv_linformer"] = "conv_linformer"
    stride: Size = 4
    """Tokens that are combined into one key and value."""

    @property
    def learns_weights(self) -> bool:
        return True
