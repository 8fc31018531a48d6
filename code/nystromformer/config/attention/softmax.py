"""Exact softmax attention."""

from typing import Literal

from pydantic import Field

from .base import Arithmetic, AttentionConfig, products


class SoftmaxConfig(AttentionConfig):
    """Exact softmax attention, quadratic in the length."""

    exceptional = ({"ignore_mask": True},)

    name: Literal["softmax"] = Field(default="softmax", description="Exact softmax attention.")

    @property
    def longest_exact(self) -> float:
        return float("inf")

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """QKᵀ and its product with V."""
        return products(4.0 * length * length * num_heads * head_dim)
