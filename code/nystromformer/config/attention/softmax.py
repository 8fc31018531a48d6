"""Exact softmax attention."""

from typing import Literal

from .base import AttentionConfig


class SoftmaxConfig(AttentionConfig):
    """Exact softmax attention."""

    exceptional = ({"ignore_mask": True},)

    name: Literal["softmax"] = "softmax"

    @property
    def longest_exact(self) -> float:
        return float("inf")
