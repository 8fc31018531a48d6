"""Sparse attention, by strides."""

import math
from typing import Literal

from ..ranges import Size
from .base import AttentionConfig


class SparseConfig(AttentionConfig):
    """Strided attention of Sparse Transformers, in both directions: tokens at most a stride away, and those a multiple
    of the stride away (Child et al. 2019)."""

    counts_tokens = ("stride",)

    name: Literal["sparse"] = "sparse"
    stride: Size = 64
    """Stride, l in the paper. Time is lowest near the square root of the length."""

    @property
    def longest_exact(self) -> float:
        return math.inf if self.stride == 1 else self.stride + 1
