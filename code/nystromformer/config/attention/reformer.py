"""Reformer attention, by locality-sensitive hashing."""

from typing import Annotated, Literal

from pydantic import Field

from ..ranges import Size
from .base import AttentionConfig

MOST_BUCKETS = 4096


class ReformerConfig(AttentionConfig):
    """Reformer attention: softmax within buckets of locality-sensitive hashing; queries and keys share one projection
    (Kitaev et al. 2020)."""

    counts_tokens = ("chunk_length", "num_buckets")

    name: Literal["reformer"] = "reformer"
    num_hashes: Annotated[int, Field(ge=1, le=8)] = 2
    """Rounds of hashing: a token attends to tokens that share its bucket in at least one round."""
    chunk_length: Size = 64
    """Tokens in a chunk: after sorting by bucket, a token attends within its chunk and the one before."""
    num_buckets: Annotated[int, Field(ge=2, le=MOST_BUCKETS, multiple_of=2)] | None = None
    """Buckets of each round, an even number; null: twice the number of chunks of a row, as in the paper."""
    across_buckets: bool = False
    """Whether a token attends to all tokens of the two chunks, as in transformers' Reformer, and not only to those of
    its bucket, as in the paper."""
    redraw_steps: Size | None = 1
    """Training steps after which new rotations for hashing are drawn, from the run's seed and the step; null: never."""

    @property
    def num_projections(self) -> int:
        return 2
