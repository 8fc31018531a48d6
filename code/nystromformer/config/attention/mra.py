"""Multi-resolution attention."""

from typing import Literal

from pydantic import Field

from ..ranges import Count, Size
from .base import Arithmetic, AttentionConfig, beyond_blocks, products


class MraConfig(AttentionConfig):
    """Multi-resolution attention (Zeng et al. 2022): exact in some blocks, by block means elsewhere."""

    exceptional = ({"choice": "query"}, {"coarse": False})

    name: Literal["mra"] = Field(
        default="mra",
        description="MRA-2: softmax over the tokens of chosen blocks, and over the means of all others (Zeng et al. "
        "2022).",
    )
    block_size: Size = Field(default=32, description="Tokens in a block.")
    num_blocks: Size = Field(
        default=8,
        description="Blocks whose tokens a block attends to individually: an average if choice is head, otherwise "
        "exact.",
    )
    neighbours: Count = Field(
        default=0, description="Neighbouring blocks on either side that are always chosen, like the block itself."
    )
    num_first_blocks: Count = Field(default=0, description="First blocks of a row that are always chosen.")
    choice: Literal["head", "block", "query"] = Field(
        default="head",
        description="What chooses the blocks. head: the highest scores among all pairs of blocks of a head, as in "
        "the paper; block: each block of queries; query: each query, at a cost of length² / block_size.",
    )
    coarse: bool = Field(
        default=True,
        description="Include the means of the blocks that are not chosen; false is the paper's MRA-2-s.",
    )

    def impossible_together(self) -> list[tuple[str, str]]:
        always = 2 * self.neighbours + 1 + self.num_first_blocks
        if self.num_blocks < always:
            text = f"expected at least {always}, for the blocks that are always chosen, found {self.num_blocks}"
            return [("num_blocks", text)]
        return []

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        def most(blocks: int) -> dict[str, int]:
            return {"num_blocks": blocks, "num_first_blocks": blocks}

        return beyond_blocks(self, self.block_size, max_seq_len, most)

    @property
    def longest_exact(self) -> float:
        return self.block_size * self.num_blocks

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """QKᵀ of queries and chosen blocks, and the product with V; the same of block means; what the choice of each
        query costs besides.
        """
        blocks = -(-length // self.block_size)
        keys = min(length, self.num_blocks * self.block_size)
        rows = length if self.choice == "query" else blocks
        scores = 2.0 * rows * blocks * head_dim
        values = scores if self.coarse else 0.0
        every = products((4.0 * length * keys * head_dim + values) * num_heads)
        backward = 2 * scores * num_heads if self.coarse else 0.0
        return Arithmetic(every.forward + scores * num_heads, every.backward + backward)
