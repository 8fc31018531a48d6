"""Sparse Sinkhorn attention."""

from typing import Literal

from pydantic import Field

from ..ranges import MOST_ITERATIONS, Size
from .base import Arithmetic, AttentionConfig, beyond_length, products


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

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """QKᵀ of each block with itself and the one beside it, the product with V, the scores of pairs of blocks, and
        the sorting of keys and values.
        """
        blocks = -(-length // self.block_size)
        tokens = blocks * self.block_size
        attended = 4.0 * tokens * 2 * self.block_size * head_dim
        return products(num_heads * (attended + 2.0 * blocks * blocks * head_dim + 4.0 * blocks * tokens * head_dim))
