"""Landmarks: means over near-equal segments of each row's own valid tokens (eq. 16).

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.scores import infinite_bias


class Cut:
    """How rows are cut into M near-equal segments: of n tokens, numbered r = 0 … n-1, token r is in segment
    floor(r·M / max(n, M)). So n need not divide by M, and in a row with n ≤ M every token is a segment of its own.

    Args:
        lengths_B: n of each row, int64.
        num_segments: M.
    """

    def __init__(self, lengths_B: Tensor, num_segments: int) -> None:
        self.lengths_B, self.num_segments = lengths_B, num_segments
        self._spans_B = lengths_B.clamp(min=num_segments)

    def segments(self, tokens: Tensor) -> Tensor:
        """The segments of numbers of tokens, (B, …)."""
        return tokens * self.num_segments // _like(self._spans_B, tokens)

    def starts(self, segments: Tensor) -> Tensor:
        """The number of each segment's first token, ceil(j·max(n, M) / M), at most n; (B, …)."""
        starts = (segments * _like(self._spans_B, segments) + self.num_segments - 1) // self.num_segments
        return torch.minimum(starts, _like(self.lengths_B, segments))

    def all_starts(self) -> Tensor:
        """(B, M + 1): those of all segments, and the row's end."""
        return self.starts(torch.arange(self.num_segments + 1, device=self.lengths_B.device)[None])


class ShortRows(NamedTuple):
    """What rows with at most M valid tokens need; whether there are any is known as data only."""

    rows_B: Tensor
    """(B,) bool: which rows are short."""
    bias_B11M: Tensor
    """(B, 1, 1, M) float32: -inf for empty segments (never for all of a row), else zero."""
    first_BM: Tensor
    """(B, M) int64: positions of a row's first M valid tokens, zero where it has fewer."""


class Segments(NamedTuple):
    """Which segment each token belongs to.

    The valid tokens of a row are cut as `Cut` says: no segment spans padding.
    """

    rows_of_tokens: Tensor
    """(B·N,) int64: row of a (B·(M+1), …) table to which each token adds; a row's last entry collects masked tokens."""
    counts_BM: Tensor
    """(B, M) int64: tokens of each segment."""
    short: ShortRows | None
    """None where no row can have fewer valid tokens than landmarks."""

    @staticmethod
    def of_length(batch: int, length: int, num_landmarks: int, device: torch.device) -> Segments:
        """Segments of rows whose N > M tokens all count."""
        positions_BN = torch.arange(length, device=device).expand(batch, length)
        cut = Cut(torch.full((1,), length, device=device), num_landmarks)
        counts_BM = cut.all_starts().diff(dim=1).expand(batch, num_landmarks)
        return Segments(_table_rows(cut.segments(positions_BN), num_landmarks), counts_BM, None)

    @staticmethod
    def of_mask(keep_BN: Tensor, lengths_B: Tensor, num_landmarks: int) -> Segments:
        """Segments of each row's valid tokens, in any pattern."""
        rank_BN, cut = keep_BN.cumsum(1) - 1, Cut(lengths_B, num_landmarks)
        ids_BN = torch.where(keep_BN, cut.segments(rank_BN), num_landmarks)
        counts_BM = cut.all_starts().diff(dim=1)
        # As for keys: a row without any valid token attends to its first, empty, landmark.
        first_M = torch.arange(num_landmarks, device=keep_BN.device) == 0
        used_BM = (counts_BM > 0) | (first_M & (lengths_B == 0)[:, None])
        short = ShortRows(
            rows_B=lengths_B <= num_landmarks,
            bias_B11M=infinite_bias(used_BM, torch.float32)[:, None, None],
            first_BM=_first_positions(keep_BN, rank_BN, num_landmarks),
        )
        return Segments(_table_rows(ids_BN, num_landmarks), counts_BM, short)


class Ranges(NamedTuple):
    """Segments as ranges of positions, for kernels: a segment's tokens lie within its range, between masked ones."""

    bounds_BM1: Tensor
    """(B, M + 1) int32: segment j is within positions bounds[j] … bounds[j + 1] - 1; the last is the row's end."""
    counts_BM: Tensor
    """(B, M) int32: tokens of each segment that count."""
    lengths_B: Tensor
    """(B,) int32: tokens of each row that count."""
    first_BM: Tensor
    """(B, M) int32: positions of a row's first M tokens that count, zero where it has fewer."""
    ids_BN: Tensor
    """(B, N) int32: segment of each token that counts, zero elsewhere."""

    @staticmethod
    def of_mask(keep_BN: Tensor, lengths_B: Tensor, num_landmarks: int) -> Ranges:
        """The ranges of the segments of each row's valid tokens, in any pattern."""
        ranks_BN, length_B1 = keep_BN.cumsum(1), lengths_B[:, None]
        cut = Cut(lengths_B, num_landmarks)
        starts_BM1 = cut.all_starts()
        # The first token that counts from a rank on; behind the last one the row ends, padding is not of it.
        begins_BM1 = torch.searchsorted(ranks_BN, torch.minimum(starts_BM1 + 1, length_B1))
        bounds_BM1 = torch.where(starts_BM1 < length_B1, begins_BM1, begins_BM1 + 1)
        bounds_BM1 = torch.where(length_B1 > 0, bounds_BM1, 0)
        return Ranges(
            bounds_BM1=bounds_BM1.int(),
            counts_BM=starts_BM1.diff(dim=1).int(),
            lengths_B=lengths_B.int(),
            first_BM=_first_positions(keep_BN, ranks_BN - 1, num_landmarks).int(),
            ids_BN=torch.where(keep_BN, cut.segments(ranks_BN - 1), 0).int(),
        )


def segment_means(x_BHND: Tensor, segments: Segments) -> Tensor:
    """Landmarks (B, H, M, D), float32 for low-precision x: a bfloat16 sum over a segment would lose its last tokens."""
    B, H, N, D = x_BHND.shape
    M = segments.counts_BM.shape[1]
    rows, dtype = x_BHND.transpose(1, 2).reshape(B * N, H * D), torch.promote_types(x_BHND.dtype, torch.float32)
    table = rows.new_zeros(B * (M + 1), H * D, dtype=dtype).index_add(0, segments.rows_of_tokens, rows.to(dtype))
    sums_BMHD = table.view(B, M + 1, H, D)[:, :M]
    return (sums_BMHD / segments.counts_BM.clamp(min=1)[:, :, None, None]).transpose(1, 2)


def fixed_segment_means(x_BHND: Tensor, num_landmarks: int) -> Tensor:
    """Landmarks (B, H, M, D) over M equal segments of the N positions; N must divide by M."""
    B, H, N, D = x_BHND.shape
    dtype = torch.promote_types(x_BHND.dtype, torch.float32)
    x_BNHD = x_BHND.transpose(1, 2)
    if x_BNHD.is_contiguous():
        # As projections give it: rows of H·D numbers are summed three times as fast as H rows of D.
        means = x_BNHD.reshape(B, num_landmarks, N // num_landmarks, H * D).mean(2, dtype=dtype)
        return means.view(B, num_landmarks, H, D).transpose(1, 2)
    return x_BHND.reshape(B, H, num_landmarks, N // num_landmarks, D).mean(3, dtype=dtype)


def strided_landmarks(x_BHND: Tensor, firsts_BM: Tensor | None, num_landmarks: int) -> Tensor:
    """Landmarks (B, H, M, D), float32 or wider: the first token of each segment of a row's own valid tokens, every
    n/M-th of n.

    Args:
        firsts_BM: their positions; None: all tokens are valid.
    """
    B, _, N, _ = x_BHND.shape
    if firsts_BM is None:
        cut = Cut(torch.full((1,), N, device=x_BHND.device), num_landmarks)
        firsts_BM = cut.all_starts()[:, :-1].expand(B, -1)
    return tokens_at(x_BHND, firsts_BM).to(torch.promote_types(x_BHND.dtype, torch.float32))


def first_of_segments(keep_BN: Tensor, lengths_B: Tensor, num_landmarks: int) -> Tensor:
    """(B, M) int64: the position of each segment's first valid token; any where a segment has none."""
    N = keep_BN.shape[1]
    ranks_BM = Cut(lengths_B, num_landmarks).all_starts()[:, :-1].clamp(max=N - 1)
    return _first_positions(keep_BN, keep_BN.cumsum(1) - 1, N).gather(1, ranks_BM)


def tokens_at(x_BHND: Tensor, positions_BM: Tensor) -> Tensor:
    """(B, H, M, D): the tokens at the given positions of each row."""
    B, H, N, D = x_BHND.shape
    M = positions_BM.shape[1]
    offsets_B1 = torch.arange(B, device=x_BHND.device)[:, None] * N
    rows = x_BHND.transpose(1, 2).reshape(B * N, H * D).index_select(0, (positions_BM + offsets_B1).flatten())
    return rows.view(B, M, H, D).transpose(1, 2)


def _table_rows(ids_BN: Tensor, num_landmarks: int) -> Tensor:
    offsets_B1 = torch.arange(ids_BN.shape[0], device=ids_BN.device)[:, None] * (num_landmarks + 1)
    return (ids_BN + offsets_B1).flatten()


def _first_positions(keep_BN: Tensor, rank_BN: Tensor, count: int) -> Tensor:
    """(B, count): positions of each row's first valid tokens, zero where it has fewer."""
    B, N = keep_BN.shape
    slot_BN = torch.where(keep_BN & (rank_BN < count), rank_BN, count)
    positions_BN = torch.arange(N, device=keep_BN.device).expand(B, N)
    table_BC1 = torch.zeros(B, count + 1, dtype=torch.int64, device=keep_BN.device)
    return table_BC1.scatter(1, slot_BN, positions_BN)[:, :count]


def _like(x_B: Tensor, other: Tensor) -> Tensor:
    return x_B.view(-1, *(1,) * (other.ndim - 1))
