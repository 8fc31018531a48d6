"""Exact softmax attention."""

from typing import Literal

from pydantic import Field

from .base import AttentionConfig


class SoftmaxConfig(AttentionConfig):
    """Exact softmax attention, quadratic in the length."""

    exceptional = ({"ignore_mask": True},)

    name: Literal["softmax"] = Field(default="softmax", description="Exact softmax attention.")

    @property
    def longest_exact(self) -> float:
        return float("inf")
