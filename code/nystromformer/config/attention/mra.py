"""Multi-resolution attention."""

from typing import Literal

from pydantic import Field

from ..ranges import Count, Size
from .base import AttentionConfig, beyond_blocks


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
