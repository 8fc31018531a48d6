"""Linformer."""

from typing import Literal

from ..ranges import Size
from .base import AttentionConfig


class LinformerConfig(AttentionConfig):
    """Linformer: keys and values projected along the length, by weights for max_seq_len tokens (Wang et al. 2020)."""

    counts_tokens = ("projected_length",)

    name: Literal["linformer"] = "linformer"
    projected_length: Size = 256
    """Number of projected keys and values; k in the paper."""
    sharing: Literal["head", "layer", "model"] = "head"
    """Which heads share a projection. head: none; layer: all heads of a layer; model: all heads of all layers."""
    share_keys_and_values: bool = False
    """Use one projection for both keys and values."""

    @property
    def learns_weights(self) -> bool:
        return True
