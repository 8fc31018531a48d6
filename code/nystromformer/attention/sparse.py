"""Sparse attention (Child et al., "Generating Long Sequences with Sparse Transformers", 2019, section 4), in both
directions, as an encoder needs it.

Shapes: B batch, H heads, N tokens, S stride, C blocks of S tokens, W blocks of a window, K keys, D head dim.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import default_scale
from nystromformer.attention.bias import infinite_bias
from nystromformer.attention.blocks import attend_to_neighbours
from nystromformer.attention.grid import Grid
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.tracing import is_under_autocast
from nystromformer.config.attention.sparse import SparseConfig


class SparseAttention(RowsAttention):
    """softmax(QKᵀ/√D) V over a pattern of two parts: time and memory O(N (S + N/S)), so O(N√N) for S near √N.

    Token i attends to token j where (their section 4.3, without the causal half)

    - "strided": |i − j| ≤ S, or S divides i − j;
    - "fixed": ⌊i/S⌋ = ⌊j/S⌋, or j is among the last `summary` tokens of any block of S. A row's last block may be
      shorter: its last tokens are then the row's last.

    Places are those among a row's valid tokens. A token of both parts counts once.

    S is `stride`, their l. A row of at most S valid tokens gets exact softmax attention where heads are merged. Of
    separate heads the first half attends to the first part, the others to the second.
    """

    config: SparseConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        grid = Grid(q, lengths_B, self.config.stride)
        if self.config.heads == "separate":
            near = (self.num_heads + 1) // 2
            nearby = self._nearby(q[:, :near], k[:, :near], v[:, :near], lengths_B)
            return torch.cat([nearby, self._remote(q[:, near:], k[:, near:], v[:, near:], grid)], 1)
        q = q * default_scale(self.head_dim)
        around = 1 if self.config.pattern == "strided" else 0
        first = _Part(grid.of(q), grid.of(k, around), grid.of(v, around), _window(grid, around))
        if self.config.pattern == "strided":
            q, k, v = (grid.of(x).transpose(2, 3) for x in (q, k, v))
            second = _Part(q, k, v, _column(grid, with_own=False))
            return grid.flat(_merged(first, second, _transposed, _transposed))
        keys, values, there_B1K = self._summaries(k, v, grid)
        blocks_N1 = torch.arange(grid.length, device=q.device)[:, None] // self.config.stride
        blocks_K = torch.arange(grid.num_blocks, device=q.device).repeat_interleave(self.config.summary)
        others_BNK = there_B1K & (blocks_K != blocks_N1)
        second = _Part(q[:, :, None], keys[:, :, None], values[:, :, None], others_BNK[:, None, None])
        out = _merged(first, second, lambda x: grid.flat(x)[:, :, None], lambda x: grid.of(x[:, :, 0]))
        return grid.flat(out)

    def _nearby(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        """The first part of the pattern alone."""
        if self.config.pattern == "strided":
            return attend_to_neighbours(q, k, v, lengths_B, self.config.stride, 1, reach=self.config.stride)
        return attend_to_neighbours(q, k, v, lengths_B, self.config.stride, 0)

    def _remote(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        """The second part of the pattern alone."""
        if self.config.pattern == "fixed":
            keys, values, there_B1K = self._summaries(k, v, grid)
            # A row without a token gets a token of zeros, since a softmax over nothing is no number.
            first_K = torch.arange(keys.shape[2], device=q.device) == 0
            allowed = there_B1K | (first_K & (grid.ends_B == 0)[:, None, None])
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=infinite_bias(allowed, q.dtype)[:, None])
        B, H = q.shape[:2]
        q, k, v = (grid.of(x).transpose(2, 3).flatten(0, 1) for x in (q, k, v))
        bias = infinite_bias(_column(grid, with_own=True), q.dtype)
        bias = bias.expand(B, H, -1, -1, -1).flatten(0, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return grid.flat(out.unflatten(0, (B, H)).transpose(2, 3))

    def _summaries(self, k: Tensor, v: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """The keys and values (B, H, K, D) of each block's last tokens, and (B or 1, 1, K) whether they are there."""
        starts_C = torch.arange(grid.num_blocks, device=k.device) * self.config.stride
        ends_BC = torch.minimum(starts_C + self.config.stride, grid.ends_B[:, None])
        places_BCK = ends_BC[..., None] - self.config.summary + torch.arange(self.config.summary, device=k.device)
        # Of a block behind the row's end none is: its end lies before its start.
        there_BK = (places_BCK >= starts_C[:, None]).flatten(1)
        index_BHKD = places_BCK.clamp_min(0).flatten(1)[:, None, :, None].expand(*k.shape[:2], -1, k.shape[3])
        return k.gather(2, index_BHKD), v.gather(2, index_BHKD), there_BK[:, None]


class _Part(NamedTuple):
    """A part of the pattern, in groups of queries that have their keys in common."""

    queries: Tensor
    """(B, H, groups, queries, D), scaled."""
    keys: Tensor
    """(B, H, groups or 1, keys, D)."""
    values: Tensor
    allowed: Tensor
    """(B or 1, 1, groups, queries or 1, keys) bool."""

    def scores(self, dtype: torch.dtype) -> Tensor:
        scores = (self.queries @ self.keys.mT).to(dtype)
        return scores.add_(infinite_bias(self.allowed, dtype))


def _merged(first: _Part, second: _Part, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """One softmax over the keys of both parts: the exponentials of each, over the sum of all.

    Args:
        first: of which each query has an allowed key.
        there, back: from the first part's order of queries to the second's, and back.

    Returns:
        (B, H, groups, queries, D) as of the first part.
    """
    # With a large sum of exponentials 16 bits would lose the small ones.
    dtype = torch.promote_types(first.queries.dtype, torch.float32)
    near, far = first.scores(dtype), second.scores(dtype)
    top = torch.maximum(near.detach().amax(-1, keepdim=True), back(far.detach().amax(-1, keepdim=True)))
    near, far = near.sub_(top).exp_(), far.sub_(there(top)).exp_()
    total = near.sum(-1, keepdim=True) + back(far.sum(-1, keepdim=True))
    values = first.values.dtype
    if values == dtype and not is_under_autocast(first.queries):
        return (near @ first.values + back(far @ second.values)) / total
    # The sums would be beyond float16: their shares are multiplied.
    return (near / total).to(values) @ first.values + back((far / there(total)).to(values) @ second.values)


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(2, 3)


def _window(grid: Grid, around: int) -> Tensor:
    """(B or 1, 1, C, S, W·S) bool: less than S away, or of the own block where `around` is 0; each token itself."""
    queries_CS1, keys_C1K = grid.places()[:, :, None], grid.places(around)[:, None, :]
    there = (keys_C1K >= 0) & (keys_C1K < grid.ends_B[:, None, None, None])
    distance_CSK = (queries_CS1 - keys_C1K).abs()
    return ((there & (distance_CSK < grid.size)) | (distance_CSK == 0))[:, None]


def _column(grid: Grid, with_own: bool) -> Tensor:
    """(B or 1, 1, S, C, C) bool: tokens of the same place in any block, the query itself or all but it."""
    there_BSC = grid.there().mT
    itself_CC = torch.eye(grid.num_blocks, dtype=torch.bool, device=grid.device)
    there = there_BSC[:, None, :, None, :]
    return there | itself_CC if with_own else there & ~itself_CC
