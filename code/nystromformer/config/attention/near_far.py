"""Near tokens exactly, the rest by groups."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import MOST
from .base import Arithmetic, AttentionConfig, products

PROBES = 32
"""Means of queries that say which keys draw attention."""


class NearFarConfig(AttentionConfig):
    """Softmax attention to nearby and selected tokens and to groups of all others, linear in the length."""

    name: Literal["near_far"] = Field(
        default="near_far",
        description="One softmax over nearby tokens, selected tokens, and the means of groups of all other tokens.",
    )
    block_size: Annotated[int, Field(ge=1, le=MOST)] = Field(default=32, description="Tokens of a block.")
    neighbours: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=1, description="Blocks on either side of a block whose tokens it attends to one by one."
    )
    num_landmarks: Annotated[int, Field(ge=1, le=MOST)] = Field(
        default=64,
        description="Groups of the tokens that are not attended to one by one; each group enters by its mean and size.",
    )
    landmarks: Literal["segment_means", "kmeans"] = Field(
        default="segment_means",
        description="What a group is. segment_means: near-equal segments of each row's own tokens; kmeans: clusters of "
        "the head's keys, by three of Lloyd's iterations, which take more time and memory.",
    )
    num_selected: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=16,
        description="Tokens of each row and head that all its tokens attend to one by one: those that draw most "
        "attention from 32 means of queries.",
    )
    num_blocks: Annotated[int, Field(ge=0, le=MOST)] = Field(
        default=0,
        description="Further blocks that each block attends to one by one: those that score best by the product of "
        "block means. The scores of all pairs of blocks cost (length / block_size)².",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        if self.block_size > max_seq_len:
            return [("block_size", f"expected at most max_seq_len = {max_seq_len}, found {self.block_size}")]
        problems = []
        blocks = -(-max_seq_len // self.block_size)
        there = f"as max_seq_len = {max_seq_len} is {blocks} block{'s' if blocks > 1 else ''}"
        if self.neighbours > max(1, blocks - 1):
            text = f"expected at most {max(1, blocks - 1)}, {there}, found {self.neighbours}"
            problems.append(("neighbours", text))
        elif self.num_blocks > max(0, blocks - 1 - self.neighbours):
            most = max(0, blocks - 1 - self.neighbours)
            text = f"expected at most {most} beside neighbours = {self.neighbours}, {there}, found {self.num_blocks}"
            problems.append(("num_blocks", text))
        for key in ("num_landmarks", "num_selected"):
            if (value := getattr(self, key)) > max_seq_len:
                problems.append((key, f"expected at most max_seq_len = {max_seq_len}, found {value}"))
        return problems

    @property
    def longest_exact(self) -> float:
        return max(self.block_size * (self.neighbours + 1), self.num_landmarks)

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """QKᵀ of each block with its keys, and the product with V; the scores by which tokens and blocks are chosen,
        which have no backward pass.
        """
        blocks = -(-length // self.block_size)
        around = (2 * min(self.neighbours, blocks - 1) + 1 + self.num_blocks) * self.block_size
        keys = min(length, around + self.num_selected + self.num_landmarks)
        forward = products(4.0 * length * keys * head_dim * num_heads)
        if length <= self.block_size * (self.neighbours + 1):
            return forward
        chosen = 2.0 * PROBES * length * head_dim if self.num_selected else 0.0
        chosen += 2.0 * blocks**2 * head_dim if self.num_blocks else 0.0
        return Arithmetic(forward.forward + chosen * num_heads, forward.backward)
