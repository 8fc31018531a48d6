"""Linear attention by the kernel elu(x) + 1."""

from typing import Literal

from pydantic import Field

from .base import AttentionConfig


class LinearConfig(AttentionConfig):
    """Linear attention (Katharopoulos et al. 2020), linear in the length."""

    name: Literal["linear"] = Field(
        default="linear", description="Linear attention by the kernel elu(x) + 1 (Katharopoulos et al. 2020)."
    )
