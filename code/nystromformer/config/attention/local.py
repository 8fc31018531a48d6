"""Local attention, by blocks."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import MOST
from .base import Arithmetic, AttentionConfig, beyond_blocks, beyond_length, products


class LocalConfig(AttentionConfig):
    """Softmax attention within blocks and to the blocks beside them, linear in the length."""

    name: Literal["local"] = Field(
        default="local", description="Softmax attention within blocks of tokens and to the blocks beside them."
    )
    block_size: Annotated[int, Field(ge=1, le=MOST)] = Field(default=128, description="Tokens of a block.")
    neighbours: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=1,
        description="Blocks on either side that a block's tokens attend to, too; 0: their own alone, as in the Long "
        "Range Arena.",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        if problems := beyond_length({"block_size": self.block_size}, max_seq_len):
            return problems
        most = max(1, -(-max_seq_len // self.block_size) - 1)
        return beyond_blocks({"neighbours": self.neighbours}, {"neighbours": most}, self.block_size, max_seq_len)

    @property
    def longest_exact(self) -> float:
        return self.block_size * (self.neighbours + 1)

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """QKᵀ of each block with those around it, and the product with V."""
        blocks = -(-length // self.block_size)
        around = (2 * min(self.neighbours, blocks - 1) + 1) * self.block_size
        return products(4.0 * blocks * self.block_size * around * head_dim * num_heads)
