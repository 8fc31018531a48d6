"""Sparse Sinkhorn attention."""

from typing import Literal

from pydantic import Field

from ..ranges import MOST_ITERATIONS, Size
from .base import AttentionConfig


class SinkhornConfig(AttentionConfig):
    """Sparse Sinkhorn attention: softmax within a block and to one other block, chosen by a differentiable sorting (Tay
    et al. 2020)."""

    counts_tokens = ("block_size",)

    name: Literal["sinkhorn"] = "sinkhorn"
    block_size: Size = 64
    """Tokens in a block. A row with at most this many tokens, without padding, gets exact attention."""
    iterations: int = Field(default=7, ge=1, le=MOST_ITERATIONS)
    """Iterations of Sinkhorn balancing, which makes the sorting approximately a permutation of the blocks."""
    temperature: float = Field(default=0.75, ge=0.001, le=1000)
    """Temperature of the scores of blocks; lower ones come closer to a permutation."""

    @property
    def longest_exact(self) -> float:
        return self.block_size
