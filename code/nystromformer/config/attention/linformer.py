"""Linformer."""

from typing import Literal

from pydantic import Field

from ..messages import quoted
from ..ranges import Size
from .base import AttentionConfig, beyond_length


class LinformerConfig(AttentionConfig):
    """Linformer (Wang et al. 2020), linear in the length, up to a length that is learned."""

    name: Literal["linformer"] = Field(
        default="linformer",
        description="Linformer: keys and values projected along the length, by weights for max_seq_len tokens (Wang "
        "et al. 2020).",
    )
    projected_length: Size = Field(default=256, description="Number of projected keys and values; k in the paper.")
    sharing: Literal["head", "layer", "model"] = Field(
        default="head",
        description="Which heads share a projection. head: none; layer: all heads of a layer; model: all heads of "
        "all layers.",
    )
    share_keys_and_values: bool = Field(default=False, description="Use one projection for both keys and values.")

    as_in_table3: bool = Field(
        default=False,
        description="Project as the Nyströmformer authors did: one projection for keys and values of all layers, "
        "separate for each head, initialised with standard deviation 0.02, by position in the padded row.",
    )

    def impossible_together(self) -> list[tuple[str, str]]:
        if self.as_in_table3 and self.sharing != "head":
            text = f'expected "head" with as_in_table3 = true, found {quoted(self.sharing)}: each head has its own'
            return [("sharing", text)]
        return []

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        return beyond_length({"projected_length": self.projected_length}, max_seq_len)

    @property
    def learns_weights(self) -> bool:
        return True

    @property
    def is_of_all_layers(self) -> bool:
        return self.sharing == "model" or self.as_in_table3
