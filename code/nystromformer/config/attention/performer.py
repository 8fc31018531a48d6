"""Performer attention, FAVOR+."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import MOST
from .base import Arithmetic, AttentionConfig, products


class PerformerConfig(AttentionConfig):
    """Performer attention (Choromanski et al. 2021), linear in the length."""

    name: Literal["performer"] = Field(
        default="performer",
        description="Performer attention: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021).",
    )
    num_features: Annotated[int, Field(ge=1, le=MOST)] = Field(
        default=256, description="Number of random features, whose products approximate softmax's exponential."
    )
    kernel: Literal["softmax", "relu"] = Field(
        default="softmax",
        description="What the features approximate. softmax: softmax attention's exponential; relu: another kernel, "
        "that of the paper's generalised attention.",
    )
    redraw_steps: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        default=1000,
        description="Training steps after which new features are drawn, as a function of the run's seed and the step; "
        "null: the first ones stay.",
    )

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """The features of queries and keys, φ(K)ᵀV and φ(Q) with it, and both with a vector in V's place."""
        return products(4.0 * length * self.num_features * (2 * head_dim + 1) * num_heads)
