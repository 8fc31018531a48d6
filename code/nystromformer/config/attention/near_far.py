"""Near tokens exactly, the rest by groups."""

from typing import Literal

from ..ranges import Count, Size
from .base import AttentionConfig


class NearFarConfig(AttentionConfig):
    """One softmax over nearby tokens, selected tokens, and means of groups of all other tokens."""

    counts_tokens = ("block_size", "num_landmarks", "num_selected")

    name: Literal["near_far"] = "near_far"
    block_size: Size = 32
    """Tokens in a block."""
    neighbours: Count = 1
    """Neighbouring blocks on either side whose tokens a block attends to individually."""
    num_landmarks: Size = 64
    """Groups of the tokens that are not attended to individually: near-equal segments of each row's own tokens."""
    num_selected: Count = 16
    """Tokens of each row and head that all its tokens attend to individually: those that attract most attention from 32
    means of queries."""
    num_blocks: Count = 0
    """Further blocks that each block attends to individually: those with the highest products of block means. The
    scores of all pairs of blocks cost (length / block_size)²."""

    def most_blocks(self, blocks: int) -> dict[str, int]:
        # Those around come first: what is left of the others may be further ones.
        return {"neighbours": max(1, blocks - 1), "num_blocks": max(0, blocks - 1 - self.neighbours)}

    @property
    def longest_exact(self) -> float:
        return max(self.block_size * (self.neighbours + 1), self.num_landmarks)
