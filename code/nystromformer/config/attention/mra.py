"""Multi-resolution attention."""

from typing import Literal

from ..messages import Impossible
from ..ranges import Count, Size
from .base import AttentionConfig


class MraConfig(AttentionConfig):
    """MRA-2: softmax over the tokens of chosen blocks, and over the means of all others (Zeng et al. 2022)."""

    exceptional = ({"choice": "query"},)
    counts_tokens = ("block_size",)

    name: Literal["mra"] = "mra"
    block_size: Size = 32
    """Tokens in a block."""
    num_blocks: Size = 8
    """Blocks whose tokens a block attends to individually: an average if choice is head, otherwise exact."""
    neighbours: Count = 0
    """Neighbouring blocks on either side that are always chosen, like the block itself."""
    num_first_blocks: Count = 0
    """First blocks of a row that are always chosen."""
    choice: Literal["head", "block", "query"] = "head"
    """What chooses the blocks. head: the highest scores among all pairs of blocks of a head, as in the paper; block:
    each block of queries; query: each query, at a cost of length² / block_size."""

    def impossible(self) -> Impossible:
        always = 2 * self.neighbours + 1 + self.num_first_blocks
        if self.num_blocks < always:
            text = f"expected at least {always}, for the blocks that are always chosen, found {self.num_blocks}"
            yield ("num_blocks",), text

    def most_blocks(self, blocks: int) -> dict[str, int]:
        return {"num_blocks": blocks, "num_first_blocks": blocks}

    @property
    def longest_exact(self) -> float:
        return self.block_size * self.num_blocks
