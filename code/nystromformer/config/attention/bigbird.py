"""BigBird's block-sparse attention."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..ranges import MOST, Count, Size
from .base import AttentionConfig, beyond_blocks, odd


class BigBirdConfig(AttentionConfig):
    """Block-sparse attention of BigBird (Zaheer et al. 2020), linear in the length."""

    name: Literal["bigbird"] = Field(
        default="bigbird",
        description="BigBird: blocks of tokens attend to neighbouring blocks, random blocks and global tokens "
        "(Zaheer et al. 2020).",
    )
    block_size: Size = Field(default=64, description="Tokens in a block.")
    num_window_blocks: Annotated[
        int, Field(ge=1, le=MOST, json_schema_extra={"not": {"multipleOf": 2}}), AfterValidator(odd)
    ] = Field(
        default=3, description="Blocks in a block's window, an odd number: itself and the same number on either side."
    )
    num_random_blocks: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3,
        description="Random blocks that each block of each head attends to, drawn once from the run's seed.",
    )
    num_global_blocks: Count = Field(
        default=2,
        description="First blocks of a row that are global: their tokens attend to all tokens, and all "
        "tokens attend to them.",
    )
    global_capacity: Count = Field(
        default=512, description="Largest number of further tokens that a task may mark as global in a row."
    )
    extra_global_tokens: Count = Field(
        default=0,
        description="Learned global tokens outside the row: in each layer they attend to all tokens, and all tokens "
        "attend to them.",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        def most(blocks: int) -> dict[str, int]:
            return {"num_window_blocks": 2 * blocks - 1, "num_random_blocks": blocks, "num_global_blocks": blocks}

        return beyond_blocks(self, self.block_size, max_seq_len, most)

    @property
    def longest_exact(self) -> float:
        if self.extra_global_tokens:
            return 0
        return self.block_size * (self._listed - self.num_window_blocks // 2)

    @property
    def num_global_tokens(self) -> int:
        """First tokens of a row that are global."""
        return self.num_global_blocks * self.block_size

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity

    @property
    def learns_weights(self) -> bool:
        return self.extra_global_tokens > 0

    @property
    def _listed(self) -> int:
        return self.num_window_blocks + self.num_random_blocks + self.num_global_blocks
