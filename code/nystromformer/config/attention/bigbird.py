"""BigBird's block-sparse attention."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import Count, Size
from .base import AttentionConfig, OddNumber


class BigBirdConfig(AttentionConfig):
    """BigBird: blocks of tokens attend to neighbouring blocks, random blocks and global tokens (Zaheer et al. 2020)."""

    counts_tokens = ("block_size",)

    name: Literal["bigbird"] = "bigbird"
    block_size: Size = 64
    """Tokens in a block."""
    num_window_blocks: OddNumber = 3
    """Blocks in a block's window, an odd number: itself and the same number on either side."""
    num_random_blocks: Annotated[int, Field(ge=0, le=1000)] = 3
    """Random blocks that each block of each head attends to, drawn once from the run's seed."""
    num_global_blocks: Count = 2
    """First blocks of a row that are global: their tokens attend to all tokens, and all tokens attend to them."""
    global_capacity: Count = 512
    """Largest number of further tokens that a task may mark as global in a row."""

    def most_blocks(self, blocks: int) -> dict[str, int]:
        return {"num_window_blocks": 2 * blocks - 1, "num_random_blocks": blocks, "num_global_blocks": blocks}

    @property
    def longest_exact(self) -> float:
        return self.block_size * (self._listed - self.num_window_blocks // 2)

    @property
    def num_global_tokens(self) -> int:
        """First tokens of a row that are global."""
        return self.num_global_blocks * self.block_size

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity

    @property
    def _listed(self) -> int:
        return self.num_window_blocks + self.num_random_blocks + self.num_global_blocks
