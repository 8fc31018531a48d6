"""Local attention, by blocks."""

from typing import Literal

from ..ranges import Count, Size
from .base import AttentionConfig


class LocalConfig(AttentionConfig):
    """Softmax attention within blocks of tokens and to the neighbouring blocks."""

    counts_tokens = ("block_size",)

    name: Literal["local"] = "local"
    block_size: Size = 128
    """Tokens in a block."""
    neighbours: Count = 1
    """Neighbouring blocks on either side that a block also attends to; 0: only its own block, as in the Long Range
    Arena."""

    def most_blocks(self, blocks: int) -> dict[str, int]:
        return {"neighbours": max(1, blocks - 1)}

    @property
    def is_local(self) -> bool:
        return True

    @property
    def longest_exact(self) -> float:
        return self.block_size * (self.neighbours + 1)
