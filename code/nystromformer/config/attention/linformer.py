"""Linformer."""

from typing import Literal

from ..messages import Impossible
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

    as_in_table3: bool = False
    """Project as the Nyströmformer authors did: one projection for keys and values of all layers, separate for each
    head, initialised with standard deviation 0.02, by position in the padded row."""

    def impossible(self) -> Impossible:
        if self.as_in_table3 and self.sharing != "head":
            text = f'expected "head" with as_in_table3 = true, found "{self.sharing}": each head has its own'
            yield ("sharing",), text

    @property
    def learns_weights(self) -> bool:
        return True

    @property
    def is_of_all_layers(self) -> bool:
        return self.sharing == "model" or self.as_in_table3
