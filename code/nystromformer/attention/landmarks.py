"""Landmarks: means over near-equal segments of each row's own valid tokens (eq. 16).

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class ShortRows(NamedTuple):
    """What rows with at most M valid tokens need; whether there are any is known as data only."""

    rows_B: Tensor
    """(B,) bool: which rows are short."""
    bias_B11M: Tensor
    """(B, 1, 1, M) float32: -inf for empty segments (never for all of a row), else zero."""
    first_BM: Tensor
    """(B, M) int64: positions of a row's first M valid tokens, zero where it has fewer."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Which segment each token belongs to.

    The valid tokens of a row, numbered r = 0 … n-1, are cut into M segments of n/M tokens, rounded up or down:
    token r is in segment floor(r·M / max(n, M)). So N need not divide by M, no segment spans padding, and in a row
    with n ≤ M every token is a landmark of its own.
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
        ids_N = torch.arange(length, device=device) * num_landmarks // length
        counts_M = _counts(torch.full((1,), length, device=device), num_landmarks)
        return Segments(
            rows_of_tokens=_table_rows(ids_N.expand(batch, length), num_landmarks),
            counts_BM=counts_M.expand(batch, num_landmarks),
            short=None,
        )

    @staticmethod
    def of_mask(keep_BN: Tensor, lengths_B: Tensor, num_landmarks: int) -> Segments:
        """Segments of each row's valid tokens, in any pattern."""
        rank_BN = keep_BN.cumsum(1) - 1
        span_B1 = lengths_B.clamp(min=num_landmarks)[:, None]
        ids_BN = torch.where(keep_BN, rank_BN * num_landmarks // span_B1, num_landmarks)
        counts_BM = _counts(lengths_B, num_landmarks)
        # As for keys: a row without any valid token attends to its first, empty, landmark.
        first_M = torch.arange(num_landmarks, device=keep_BN.device) == 0
        used_BM = (counts_BM > 0) | (first_M & (lengths_B == 0)[:, None])
        bias_BM = torch.zeros(used_BM.shape, device=keep_BN.device).masked_fill(~used_BM, float("-inf"))
        return Segments(
            rows_of_tokens=_table_rows(ids_BN, num_landmarks),
            counts_BM=counts_BM,
            short=ShortRows(
                rows_B=lengths_B <= num_landmarks,
                bias_B11M=bias_BM[:, None, None, :],
                first_BM=_first_positions(keep_BN, rank_BN, num_landmarks),
            ),
        )


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
        ranks_BN = keep_BN.cumsum(1)
        length_B1 = lengths_B[:, None]
        edges = torch.arange(num_landmarks + 1, device=keep_BN.device)
        starts_BM1 = (edges * length_B1.clamp(min=num_landmarks) + num_landmarks - 1) // num_landmarks
        # The first token that counts from a rank on; behind the last one the row ends, padding is not of it.
        begins_BM1 = torch.searchsorted(ranks_BN, torch.minimum(starts_BM1 + 1, length_B1))
        bounds_BM1 = torch.where(starts_BM1 < length_B1, begins_BM1, begins_BM1 + 1)
        bounds_BM1 = torch.where(length_B1 > 0, bounds_BM1, 0)
        return Ranges(
            bounds_BM1=bounds_BM1.int(),
            counts_BM=torch.minimum(starts_BM1, length_B1).diff(dim=1).int(),
            lengths_B=lengths_B.int(),
            first_BM=_first_positions(keep_BN, ranks_BN - 1, num_landmarks).int(),
            ids_BN=torch.where(keep_BN, (ranks_BN - 1) * num_landmarks // length_B1.clamp(min=num_landmarks), 0).int(),
        )


def segment_means(x_BHND: Tensor, segments: Segments) -> Tensor:
    """Landmarks (B, H, M, D), float32 for low-precision x: a bfloat16 sum over a segment would lose its last tokens."""
    B, H, N, D = x_BHND.shape
    M = segments.counts_BM.shape[1]
    rows = x_BHND.transpose(1, 2).reshape(B * N, H * D).to(accumulation_dtype(x_BHND))
    table = rows.new_zeros(B * (M + 1), H * D).index_add(0, segments.rows_of_tokens, rows)
    means_BMHD = table.view(B, M + 1, H, D)[:, :M] / segments.counts_BM.clamp(min=1)[:, :, None, None]
    return means_BMHD.transpose(1, 2)


def fixed_segment_means(x_BHND: Tensor, num_landmarks: int) -> Tensor:
    """Landmarks (B, H, M, D) over M equal segments of the N positions; N must divide by M."""
    B, H, N, D = x_BHND.shape
    dtype = accumulation_dtype(x_BHND)
    x_BNHD = x_BHND.transpose(1, 2)
    if x_BNHD.is_contiguous():
        # As projections give it: rows of H·D numbers are summed three times as fast as H rows of D.
        means = x_BNHD.reshape(B, num_landmarks, N // num_landmarks, H * D).mean(2, dtype=dtype)
        return means.view(B, num_landmarks, H, D).transpose(1, 2)
    return x_BHND.reshape(B, H, num_landmarks, N // num_landmarks, D).mean(3, dtype=dtype)


def tokens_at(x_BHND: Tensor, positions_BM: Tensor) -> Tensor:
    """(B, H, M, D): the tokens at the given positions of each row."""
    B, H, N, D = x_BHND.shape
    M = positions_BM.shape[1]
    offsets_B1 = torch.arange(B, device=x_BHND.device)[:, None] * N
    rows = x_BHND.transpose(1, 2).reshape(B * N, H * D).index_select(0, (positions_BM + offsets_B1).flatten())
    return rows.view(B, M, H, D).transpose(1, 2)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """float32 for 16-bit tensors, else x's own."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def _counts(lengths_B: Tensor, num_landmarks: int) -> Tensor:
    """(B, M) tokens per segment: segment j starts at rank ceil(j·max(n, M) / M)."""
    edges = torch.arange(num_landmarks + 1, device=lengths_B.device)
    span_B1 = lengths_B.clamp(min=num_landmarks)[:, None]
    starts = (edges * span_B1 + num_landmarks - 1) // num_landmarks
    return torch.minimum(starts, lengths_B[:, None]).diff(dim=1)


def _table_rows(ids_BN: Tensor, num_landmarks: int) -> Tensor:
    offsets_B1 = torch.arange(ids_BN.shape[0], device=ids_BN.device)[:, None] * (num_landmarks + 1)
    return (ids_BN + offsets_B1).flatten()


def _first_positions(keep_BN: Tensor, rank_BN: Tensor, num_landmarks: int) -> Tensor:
    B, N = keep_BN.shape
    slot_BN = torch.where(keep_BN & (rank_BN < num_landmarks), rank_BN, num_landmarks)
    positions_BN = torch.arange(N, device=keep_BN.device).expand(B, N)
    return torch.zeros(B, num_landmarks + 1, dtype=torch.int64, device=keep_BN.device).scatter(
        1, slot_BN, positions_BN
    )[:, :num_landmarks]
