"""Sparse Sinkhorn attention."""

from typing import Literal

from pydantic import Field

from ..ranges import MOST_ITERATIONS, Size
from .base import AttentionConfig, beyond_length


class SinkhornConfig(AttentionConfig):
    """Sparse Sinkhorn attention (Tay et al. 2020): softmax over the own block and over one that is sorted beside it."""

    name: Literal["sinkhorn"] = Field(
        default="sinkhorn",
        description="Sparse Sinkhorn attention: softmax within a block and to one other block, chosen by a "
        "differentiable sorting (Tay et al. 2020).",
    )
    block_size: Size = Field(
        default=64,
        description="Tokens in a block. A row with at most this many tokens, without padding, gets exact attention.",
    )
    iterations: int = Field(
        default=7,
        ge=1,
        le=MOST_ITERATIONS,
        description="Iterations of Sinkhorn balancing, which makes the sorting approximately a permutation of the "
        "blocks.",
    )
    temperature: float = Field(
        default=0.75,
        ge=0.001,
        le=1000,
        description="Temperature of the scores of blocks; lower ones come closer to a permutation.",
    )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        return beyond_length({"block_size": self.block_size}, max_seq_len)

    @property
    def longest_exact(self) -> float:
        return self.block_size
