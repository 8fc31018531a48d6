"""Linear attention by the kernel elu(x) + 1."""

from typing import Literal

from .base import AttentionConfig


class LinearConfig(AttentionConfig):
    """Linear attention by the kernel elu(x) + 1 (Katharopoulos et al. 2020)."""

    name: Literal["linear"] = "linear"
