"""Sparse attention (Child et al., "Generating Long Sequences with Sparse Transformers", 2019, section 4), in both
directions, as an encoder needs it.

Shapes: B batch, H heads, N tokens, S stride, C blocks of S tokens, W blocks of a window, K keys, D head dim.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.grid import Grid
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.scores import default_scale, infinite_bias
from nystromformer.attention.tracing import is_under_autocast
from nystromformer.config.attention.methods import SparseConfig


class SparseAttention(RowsAttention):
    """softmax(QKᵀ/√D) V over a pattern of two parts: time and memory O(N (S + N/S)), so O(N√N) for S near √N.

    Token i attends to token j where |i − j| ≤ S, or S divides i − j (their section 4.3, "strided", without the causal
    half). Places are those among a row's valid tokens. A token of both parts counts once.

    S is `stride`, their l. A row of at most S valid tokens gets exact softmax attention.
    """

    config: SparseConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        grid = Grid(q, lengths_B, self.config.stride)
        q = q * default_scale(self.head_dim)
        near = _Part(grid.of(q), grid.of(k, 1), grid.of(v, 1), _window(grid))
        q, k, v = (grid.of(x).transpose(2, 3) for x in (q, k, v))
        return grid.flat(_merged(near, _Part(q, k, v, _column(grid))))


class _Part(NamedTuple):
    """A part of the pattern, in groups of queries that have their keys in common."""

    queries: Tensor
    """(B, H, groups, queries, D), scaled."""
    keys: Tensor
    """(B, H, groups, keys, D)."""
    values: Tensor
    allowed: Tensor
    """(B or 1, 1, groups, queries, keys) bool."""

    def scores(self, dtype: torch.dtype) -> Tensor:
        scores = (self.queries @ self.keys.mT).to(dtype)
        return scores.add_(infinite_bias(self.allowed, dtype))


def _merged(first: _Part, second: _Part) -> Tensor:
    """One softmax over the keys of both parts: the exponentials of each, over the sum of all.

    Args:
        first: of which each query has an allowed key.
        second: whose groups are the first one's queries, and its queries the first one's groups.

    Returns:
        (B, H, groups, queries, D) as of the first part.
    """
    # With a large sum of exponentials 16 bits would lose the small ones.
    dtype = torch.promote_types(first.queries.dtype, torch.float32)
    near, far = first.scores(dtype), second.scores(dtype)
    top = torch.maximum(near.detach().amax(-1, keepdim=True), _turned(far.detach().amax(-1, keepdim=True)))
    near, far = near.sub_(top).exp_(), far.sub_(_turned(top)).exp_()
    total = near.sum(-1, keepdim=True) + _turned(far.sum(-1, keepdim=True))
    values = first.values.dtype
    if values == dtype and not is_under_autocast(first.queries):
        return (near @ first.values + _turned(far @ second.values)) / total
    # The sums would be beyond float16: their shares are multiplied.
    return (near / total).to(values) @ first.values + _turned((far / _turned(total)).to(values) @ second.values)


def _turned(x: Tensor) -> Tensor:
    """From one part's order of queries to the other's."""
    return x.transpose(2, 3)


def _window(grid: Grid) -> Tensor:
    """(B or 1, 1, C, S, W·S) bool: less than S away; each token itself."""
    queries_CS1, keys_C1K = grid.places()[:, :, None], grid.places(1)[:, None, :]
    there = (keys_C1K >= 0) & (keys_C1K < grid.ends_B[:, None, None, None])
    distance_CSK = (queries_CS1 - keys_C1K).abs()
    return ((there & (distance_CSK < grid.size)) | (distance_CSK == 0))[:, None]


def _column(grid: Grid) -> Tensor:
    """(B or 1, 1, S, C, C) bool: tokens of the same place in any other block."""
    itself_CC = torch.eye(grid.num_blocks, dtype=torch.bool, device=grid.device)
    return grid.there().mT[:, None, :, None, :] & ~itself_CC
