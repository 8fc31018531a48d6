"""Near tokens exactly, the rest by groups."""

from typing import Literal

from pydantic import Field

from ..ranges import Count, Size
from .base import AttentionConfig, beyond_blocks, beyond_length


class NearFarConfig(AttentionConfig):
    """Softmax attention to nearby and selected tokens and to groups of all others, linear in the length."""

    name: Literal["near_far"] = Field(
        default="near_far",
        description="One softmax over nearby tokens, selected tokens, and means of groups of all other tokens.",
    )
    block_size: Size = Field(default=32, description="Tokens in a block.")
    neighbours: Count = Field(
        default=1, description="Neighbouring blocks on either side whose tokens a block attends to individually."
    )
    num_landmarks: Size = Field(
        default=64,
        description="Groups of the tokens that are not attended to individually.",
    )
    landmarks: Literal["segment_means", "kmeans"] = Field(
        default="segment_means",
        description="How groups are formed. segment_means: near-equal segments of each row's own tokens; kmeans: "
        "clusters of the head's keys.",
    )
    num_selected: Count = Field(
        default=16,
        description="Tokens of each row and head that all its tokens attend to individually: those that attract most "
        "attention from 32 means of queries.",
    )
    num_blocks: Count = Field(
        default=0,
        description="Further blocks that each block attends to individually: those with the highest products of "
        "block means. The scores of all pairs of blocks cost (length / block_size)².",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        if problems := beyond_length({"block_size": self.block_size}, max_seq_len):
            return problems

        def further(blocks: int) -> dict[str, int]:
            # Those around come first: what is left of the others may be further ones.
            return {"num_blocks": max(0, blocks - 1 - self.neighbours)}

        sizes, beside = (self.block_size, max_seq_len), f" beside neighbours = {self.neighbours}"
        problems = beyond_blocks(self, *sizes, lambda blocks: {"neighbours": max(1, blocks - 1)})
        problems = problems or beyond_blocks(self, *sizes, further, beside)
        tokens = {"num_landmarks": self.num_landmarks, "num_selected": self.num_selected}
        return problems + beyond_length(tokens, max_seq_len)

    @property
    def longest_exact(self) -> float:
        return max(self.block_size * (self.neighbours + 1), self.num_landmarks)
