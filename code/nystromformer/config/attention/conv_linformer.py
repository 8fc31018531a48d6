"""Linformer with a convolution in the place of its projections."""

from typing import Literal

from pydantic import Field

from ..ranges import Size
from .base import AttentionConfig, beyond_length


class ConvLinformerConfig(AttentionConfig):
    """Softmax attention to weighted sums of `stride` tokens that follow each other."""

    name: Literal["conv_linformer"] = Field(
        default="conv_linformer",
        description="Linformer with a strided convolution instead of its projections, for any length: softmax "
        "attention to learned weighted sums of consecutive tokens.",
    )
    stride: Size = Field(default=4, description="Tokens that are combined into one key and value.")

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        return beyond_length({"stride": self.stride}, max_seq_len)

    @property
    def learns_weights(self) -> bool:
        return True
