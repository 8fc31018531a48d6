"""Linear attention by the kernel elu(x) + 1."""

from typing import Literal

from pydantic import Field

from .base import Arithmetic, AttentionConfig, products


class LinearConfig(AttentionConfig):
    """Linear attention (Katharopoulos et al. 2020), linear in the length."""

    name: Literal["linear"] = Field(
        default="linear", description="Linear attention by the kernel elu(x) + 1 (Katharopoulos et al. 2020)."
    )

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """φ(K)ᵀV and φ(Q) with it, and both with a vector in V's place."""
        return products(4.0 * length * (head_dim + 1) * head_dim * num_heads)
