"""Longformer's attention."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import MOST, Count
from .base import AttentionConfig


class LongformerConfig(AttentionConfig):
    """Longformer's attention: softmax over a sliding window and global tokens (Beltagy et al. 2020)."""

    counts_tokens = ("window", "num_global_tokens")

    name: Literal["longformer"] = "longformer"
    window: Annotated[int, Field(ge=2, le=MOST, multiple_of=2)] = 512
    """Tokens in the window besides the token itself, half of them on either side; an even number."""
    num_global_tokens: Count = 1
    """First tokens of a row that are global: they attend to all tokens, and all tokens attend to them. Tokens that a
    task marks, such as WikiHop's question and candidates, are global as well."""
    global_capacity: Count = 512
    """Largest number of tokens that a task may mark in a row. On a GPU, memory for this many is reserved if any may be
    marked."""

    @property
    def is_local(self) -> bool:
        return self.num_global_tokens == 0

    @property
    def longest_exact(self) -> float:
        return self.num_global_tokens + 1 + self.window // 2

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity
