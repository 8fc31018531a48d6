"""Local attention, by blocks."""

from typing import Literal

from pydantic import Field

from ..ranges import Count, Size
from .base import AttentionConfig, beyond_blocks


class LocalConfig(AttentionConfig):
    """Softmax attention within blocks and to the blocks beside them, linear in the length."""

    name: Literal["local"] = Field(
        default="local", description="Softmax attention within blocks of tokens and to the neighbouring blocks."
    )
    block_size: Size = Field(default=128, description="Tokens in a block.")
    neighbours: Count = Field(
        default=1,
        description="Neighbouring blocks on either side that a block also attends to; 0: only its own block, as in "
        "the Long Range Arena.",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        return beyond_blocks(self, self.block_size, max_seq_len, lambda blocks: {"neighbours": max(1, blocks - 1)})

    @property
    def is_local(self) -> bool:
        return True

    @property
    def longest_exact(self) -> float:
        return self.block_size * (self.neighbours + 1)
