"""Groups of keys, each by its mean, without the keys that a block of queries sees one by one.

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, M groups, L groups that are listed for a block, Y
blocks that a block sees, T cells, D head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.landmarks import Cut
from nystromformer.attention.parts import Keys
from nystromformer.attention.scores import never
from nystromformer.attention.tracing import is_exporting


class Seen(NamedTuple):
    """What the queries of each block see one by one."""

    blocks_BHCY: Tensor
    """int64: the blocks, the ones around first; (B or 1, H or 1, C, Y)."""
    there_BHCY: Tensor
    """bool: False for what is no block of the row."""
    around: int
    """How many of them are around: Y or less."""


class Sums(NamedTuple):
    """Sums of keys, of values, and their number."""

    k: Tensor
    v: Tensor
    counts: Tensor
    """One dimension less, float."""

    def minus(self, other: Sums) -> Sums:
        """Those of the keys that `other` has not."""
        return Sums(*(a - b for a, b in zip(self, other, strict=True)))

    def keys(self, dtype: torch.dtype, left_out: Tensor | None = None) -> Keys:
        """Means as keys: a group of n counts n times, so log n is added to its score.

        Args:
            left_out: bool, of the counts' shape: groups that are none.
        """
        counts = self.counts.clamp(min=1)
        empty = self.counts < 0.5 if left_out is None else (self.counts < 0.5) | left_out
        bias = counts.log().masked_fill(empty, never(self.counts.dtype))
        k, v = (torch.where(empty[..., None], 0.0, x / counts[..., None]).to(dtype) for x in (self.k, self.v))
        return Keys(k, v, bias)


class Cells:
    """What blocks and near-equal segments of each row's own tokens have in common. They follow one another in the row,
    so a cell's number is the sum of both numbers.

    Args:
        ends_B: int64, tokens of each row that count, at least 1.
        length: N.
    """

    def __init__(self, ends_B: Tensor, length: int, size: int, num_groups: int) -> None:
        self.ends_B, self.size, self.num_groups = ends_B, size, num_groups
        self.cut = Cut(ends_B, num_groups)
        self.num_cells = num_groups + (length + size - 1) // size
        """T; one more collects what does not count."""
        places_N = torch.arange(length, device=ends_B.device)
        there_BN = places_N < ends_B[:, None]
        segments_BN = self.cut.segments(places_N.expand(ends_B.shape[0], -1))
        self.cells_BN = torch.where(there_BN, segments_BN + places_N // size, self.num_cells)
        self.segments_BN = torch.where(there_BN, segments_BN, num_groups)

    def sums(self, k: Tensor, v: Tensor, selected_BHK: Tensor, there_BHK: Tensor) -> Sums:
        """Of each cell and head, (B, T + 1, H, D), of the tokens that are not selected.

        Args:
            selected_BHK: their places.
            there_BHK: False where there is none.
        """
        B, H, _, _ = k.shape
        T1, dtype = self.num_cells + 1, torch.promote_types(k.dtype, torch.float32)
        cells_BN = self.cells_BN.expand(B, -1)
        cells_BKH = cells_BN[:, None].expand(-1, H, -1).gather(2, selected_BHK).transpose(1, 2)
        taken_BKH = there_BHK.transpose(1, 2).to(dtype)

        def summed(x_BHND: Tensor) -> Tensor:
            D = x_BHND.shape[3]
            x_BNX = x_BHND.transpose(1, 2).flatten(2).to(dtype)
            table_BTX = x_BNX.new_zeros(B, T1, H * D).scatter_add(1, cells_BN[..., None].expand_as(x_BNX), x_BNX)
            of_selected = x_BHND.gather(2, selected_BHK[..., None].expand(-1, -1, -1, D)).transpose(1, 2)
            of_selected = of_selected.to(dtype) * taken_BKH[..., None]
            index = cells_BKH[..., None].expand_as(of_selected)
            return table_BTX.unflatten(2, (H, D)).scatter_add(1, index, -of_selected)

        ones_BN = torch.ones(1, 1, dtype=dtype, device=k.device).expand_as(cells_BN)
        counts_BT = ones_BN.new_zeros(B, T1).scatter_add(1, cells_BN, ones_BN)
        counts = counts_BT[..., None].expand(-1, -1, H).scatter_add(1, cells_BKH, -taken_BKH)
        of_none = torch.arange(T1, device=k.device) == self.num_cells
        return Sums(summed(k), summed(v), counts.masked_fill(of_none[:, None], 0.0))

    def whole(self, cells: Sums) -> Sums:
        """Of each segment, (B, M, H, D)."""
        B, T1 = cells.counts.shape[:2]
        segments_BT = torch.full((self.ends_B.shape[0], T1), self.num_groups, device=cells.k.device)
        segments_BT = segments_BT.scatter(1, self.cells_BN, self.segments_BN).expand(B, -1)

        def summed(x: Tensor) -> Tensor:
            index = segments_BT.view(B, T1, *(1,) * (x.ndim - 2)).expand_as(x)
            return x.new_zeros(B, self.num_groups + 1, *x.shape[2:]).scatter_add(1, index, x)[:, :-1]

        return Sums(*(summed(x) for x in cells))

    def seen_in_part(self, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """Of each block the segments of which it sees a part, perhaps not all: (B, H or 1, C, L), and bool, which are
        listed for the first time. And of all segments, (B, H or 1, C, M) bool, of which it sees something.
        """
        # The segments of the first and of the last token of each block; of what is no block those of the row's.
        most = self.ends_B.view(-1, 1, 1, 1) - 1
        first = self.cut.segments((seen.blocks_BHCY * self.size).clamp(min=0).minimum(most))
        last = self.cut.segments(((seen.blocks_BHCY + 1) * self.size - 1).clamp(min=0).minimum(most))
        # Between the first and the last of the blocks around everything is seen.
        of_all = first[..., : seen.around].amin(-1, keepdim=True), last[..., : seen.around].amax(-1, keepdim=True)
        further = first[..., seen.around :], last[..., seen.around :]
        there = seen.there_BHCY[..., seen.around :].expand_as(further[0])
        listed = torch.cat([*of_all, *further], -1)
        usable = torch.cat([torch.ones_like(listed[..., :2], dtype=torch.bool), there, there], -1)
        same = (listed[..., :, None] == listed[..., None, :]) & usable[..., None, :]
        earlier = torch.ones_like(same[0, 0, 0]).tril(-1)
        groups_M = torch.arange(self.num_groups, device=first.device)
        touched = (first[..., None] <= groups_M) & (groups_M <= last[..., None])
        touched = (touched & seen.there_BHCY[..., None]).any(-2)
        return listed, usable & ~(same & earlier).any(-1), touched

    def left(self, whole: Sums, cells: Sums, listed_BHCL: Tensor, seen: Seen) -> Sums:
        """What a block does not see of the listed segments, (B, H, C, L, D).

        Args:
            whole: of the segments.
        """
        B, _, H = cells.counts.shape
        groups, blocks = listed_BHCL[..., None], seen.blocks_BHCY[..., None, :]
        begins = torch.maximum(self.cut.starts(groups), blocks * self.size)
        ends = torch.minimum(self.cut.starts(groups + 1), (blocks + 1) * self.size)
        is_cell = seen.there_BHCY[..., None, :] & (begins < ends)
        index = torch.where(is_cell, groups + blocks, self.num_cells)
        listed, of_cells = listed_BHCL.expand(B, H, -1, -1), index.expand(B, H, -1, -1, -1)
        return Sums(*(_listed(x, listed) for x in whole)).minus(Sums(*(_listed(x, of_cells).sum(4) for x in cells)))


def _listed(x: Tensor, index_BH: Tensor) -> Tensor:
    """x[b, index[b, h, …], h] of an x whose first dimensions are B, places and H."""
    B, X, H = x.shape[:3]
    rows, heads = (
        torch.arange(count, device=x.device).view(-1, *(1,) * behind)
        for count, behind in ((B, index_BH.ndim - 1), (H, index_BH.ndim - 2))
    )
    if is_exporting() or x.device.type != "cpu":  # where a plain index adds up gradients in a fixed order
        return x[rows, index_BH, heads]
    places = (rows * X + index_BH) * H + heads
    return x.flatten(0, 2).index_select(0, places.flatten()).view(*index_BH.shape, *x.shape[3:])


def taken(x_BHN: Tensor, index_BHCK: Tensor) -> Tensor:
    """(B, H, C, K, …): what stands at places of the third dimension."""
    if is_exporting():
        rows = torch.arange(x_BHN.shape[0], device=x_BHN.device)[:, None, None, None]
        return x_BHN[rows, torch.arange(x_BHN.shape[1], device=x_BHN.device)[:, None, None], index_BHCK]
    index_BHX = index_BHCK.expand(*x_BHN.shape[:2], -1, -1).flatten(2)
    if x_BHN.ndim == 4:
        index_BHX = index_BHX[..., None].expand(-1, -1, -1, x_BHN.shape[3])
    return x_BHN.gather(2, index_BHX).unflatten(2, index_BHCK.shape[2:])
