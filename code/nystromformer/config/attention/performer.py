"""Performer attention, FAVOR+."""

from typing import Literal

from pydantic import Field

from ..messages import quoted
from ..ranges import Size
from .base import AttentionConfig


class PerformerConfig(AttentionConfig):
    """Performer attention (Choromanski et al. 2021), linear in the length."""

    exceptional = ({"as_in_table3": True},)

    name: Literal["performer"] = Field(
        default="performer",
        description="Performer attention: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021).",
    )
    num_features: Size = Field(
        default=256, description="Number of random features; their products approximate softmax's exponential."
    )
    kernel: Literal["softmax", "relu"] = Field(
        default="softmax",
        description="What the features approximate. softmax: the exponential of softmax attention; relu: the kernel "
        "of the paper's generalised attention.",
    )
    redraw_steps: Size | None = Field(
        default=1000,
        description="Training steps after which new features are drawn, from the run's seed and the step; null: never.",
    )

    as_in_table3: bool = Field(
        default=False,
        description="Compute what the Nyströmformer authors ran with performer-pytorch: the softmax kernel with "
        "scores divided by head_dim instead of its square root, the package's epsilon of 1e-4, and padding in "
        "the denominator.",
    )

    def impossible_together(self) -> list[tuple[str, str]]:
        if self.as_in_table3 and self.kernel != "softmax":
            text = f'expected "softmax" with as_in_table3 = true, found {quoted(self.kernel)}'
            return [("kernel", text)]
        return []
