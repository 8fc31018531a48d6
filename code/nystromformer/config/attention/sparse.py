"""Sparse attention, by strides or by fixed blocks."""

import math
from typing import Literal

from ..messages import Impossible
from ..ranges import Size
from .base import AttentionConfig


class SparseConfig(AttentionConfig):
    """Factorised attention of Sparse Transformers, in both directions: nearby tokens and a few over the whole row
    (Child et al. 2019)."""

    counts_tokens = ("stride",)

    name: Literal["sparse"] = "sparse"
    pattern: Literal["strided", "fixed"] = "strided"
    """What a token attends to. strided: tokens at most a stride away, and tokens a multiple of the stride away; fixed:
    the tokens of its own block of stride tokens, and the last tokens of every block."""
    stride: Size = 64
    """Stride, l in the paper. Time is lowest near the square root of the length."""
    summary: Size = 8
    """Tokens at the end of each block that all others attend to, c in the paper; for the fixed pattern only."""
    heads: Literal["merged", "separate"] = "merged"
    """merged: each head attends to both parts of the pattern; separate: half of the heads attend to the first part, the
    others to the second."""

    def impossible(self) -> Impossible:
        if self.pattern == "fixed" and self.summary > self.stride:
            yield ("summary",), f"expected at most stride = {self.stride}, the tokens of a block, found {self.summary}"

    def impossible_with(self, num_heads: int) -> list[tuple[str, str]]:
        if self.heads == "merged" or num_heads > 1:
            return []
        return [("heads", 'expected "merged" where num_head is 1, found "separate": one head has no half')]

    @property
    def longest_exact(self) -> float:
        if self.pattern == "fixed" and self.summary == self.stride:
            everything, nearby, remote = math.inf, self.stride, math.inf
        elif self.pattern == "fixed":
            everything, nearby, remote = self.stride, self.stride, self.summary
        elif self.stride == 1:
            everything, nearby, remote = math.inf, 2, math.inf
        else:
            everything, nearby, remote = self.stride + 1, self.stride + 1, 1
        return everything if self.heads == "merged" else min(nearby, remote)
