"""Longformer's attention."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from ..ranges import MOST, MOST_LAYERS, Count, Size, as_tuple
from .base import AttentionConfig


def _form(value: object) -> str | None:
    """Which of the two forms a `dilation` has; messages.py knows these tags."""
    if isinstance(value, (list, tuple)):
        return "list"
    return "number" if isinstance(value, int) else None


Steps = Annotated[tuple[Size, ...], Field(max_length=MOST_LAYERS), BeforeValidator(as_tuple)]


class LongformerConfig(AttentionConfig):
    """Longformer's attention: softmax over a sliding window and global tokens (Beltagy et al. 2020)."""

    exceptional = ({"global_projections": True},)
    counts_tokens = ("window", "dilation", "num_global_tokens")

    name: Literal["longformer"] = "longformer"
    window: Annotated[int, Field(ge=2, le=MOST, multiple_of=2)] = 512
    """Tokens in the window besides the token itself, half of them on either side; an even number."""
    dilation: Annotated[Annotated[Size, Tag("number")] | Annotated[Steps, Tag("list")], Discriminator(_form)] = 1
    """Distance between neighbouring tokens of a window; 1: no gaps. A number for all heads, or a list with one for
    each."""
    num_global_tokens: Count = 1
    """First tokens of a row that are global: they attend to all tokens, and all tokens attend to them. Tokens that a
    task marks, such as WikiHop's question and candidates, are global as well."""
    global_capacity: Count = 512
    """Largest number of tokens that a task may mark in a row. On a GPU, memory for this many is reserved if any may be
    marked."""
    global_projections: bool = False
    """Give global tokens separate learned maps of each head's queries and values, which start as the identity."""

    def impossible_with(self, num_heads: int) -> list[tuple[str, str]]:
        if isinstance(self.dilation, int) or len(self.dilation) == num_heads:
            return []
        text = f"expected a number, or {num_heads} of them, one for each head, found {len(self.dilation)}"
        return [("dilation", text)]

    @property
    def is_local(self) -> bool:
        return self.num_global_tokens == 0

    @property
    def longest_exact(self) -> float:
        if self.global_projections:
            return 0
        steps = [self.dilation] if isinstance(self.dilation, int) else self.dilation
        return self.num_global_tokens + 1 + (self.window // 2 if max(steps, default=1) == 1 else 0)

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity

    @property
    def learns_weights(self) -> bool:
        return self.global_projections
