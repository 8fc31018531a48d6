"""Near tokens exactly, the rest of the row by groups: attention that can be sharp, in O(N).

The paper's attention has a matrix of rank M, which cannot look at the token before. Here the tokens nearby, and those
that draw attention from everywhere, are keys of their own; all others come in groups, in the same softmax.

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, K selected tokens, M groups, D head dim, P probes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention import groups
from nystromformer.attention.decisions import decided, greatest
from nystromformer.attention.grid import Grid
from nystromformer.attention.landmarks import Segments, segment_means
from nystromformer.attention.parts import Keys, attend_to_parts
from nystromformer.attention.rows import RowsAttention, attend_to_all
from nystromformer.attention.scores import default_scale, finite_bias, never
from nystromformer.attention.tracing import is_exporting, without_autocast
from nystromformer.config.attention.methods import NearFarConfig

PROBES = 32
"""Means of queries that say which keys draw attention."""


class NearFarAttention(RowsAttention):
    """One softmax over nearby tokens, selected ones, and the means of groups of all others: O(N).

    A query's keys are, each once: the tokens of its own block and of `neighbours` blocks on either side; the row's
    `num_selected` tokens that draw most attention in this head, from means of its queries; the tokens of the
    `num_blocks` further blocks that score best for its block, by block means; and groups of all other tokens. A group
    of n tokens has their mean key k̄ and mean value, and counts n times: its score is q·k̄/√D + log n. What a query sees
    one by one is left out of the mean and of n. With equal scores the earlier token or block is taken.

    It is softmax attention for rows of at most (`neighbours` + 1)·`block_size` tokens, and for rows of at most
    `num_landmarks` tokens.
    """

    config: NearFarConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        with without_autocast(q):
            if is_exporting() or (self.config.neighbours + 1) * self.config.block_size < q.shape[2]:
                return self._attend(q, k, v, lengths_B)
            return attend_to_all(q, k, v, lengths_B)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        size, around = self.config.block_size, self.config.neighbours
        if not (is_exporting() or torch.compiler.is_compiling()):
            around = min(around, (q.shape[2] - 1) // size)
        grid = Grid(k, None if lengths_B is None else lengths_B.clamp(min=1), size)
        selected = self._selected(q, k, grid)
        seen = self._seen(q, k, grid, around)
        segments, own = self._segments(k, v, grid, seen, selected)
        shared = _joined(selected.keys(k, v, grid.num_blocks), segments)
        if self.config.num_blocks:
            own = _joined(self._further(k, v, grid, seen, selected), own)
        around_bias = selected.bias_of_others(grid.places(around)[None, None], grid, k.dtype)[:, :, :, None]
        return attend_to_parts(q, k, v, around_bias, size, around, shared, own)

    def _selected(self, q: Tensor, k: Tensor, grid: Grid) -> _Selected:
        """The keys that draw most attention from means of queries."""
        B, H, N, D = q.shape
        there_BN = grid.tokens().expand(B, -1)

        def select() -> Tensor:
            segments = Segments.of_mask(there_BN, there_BN.sum(1), PROBES)
            probes_BHPD = segment_means(q, segments)
            scores_BHPN = probes_BHPD @ k.to(probes_BHPD.dtype).mT * default_scale(D)
            scores_BHPN = scores_BHPN.masked_fill(~there_BN[:, None, None], never(scores_BHPN.dtype))
            weights_BHPN = torch.softmax(scores_BHPN, -1)
            drawn_BHN = (weights_BHPN * (segments.counts_BM > 0)[:, None, :, None]).sum(2)
            places_BHK, found_BHK = greatest(drawn_BHN, there_BN[:, None], self.config.num_selected)
            return places_BHK.where(found_BHK, N).int()

        with torch.no_grad():
            # Which of two keys draws more, the last digit may decide.
            places_BHK = there_BN.new_zeros(B, H, 0, dtype=torch.int64)
            if self.config.num_selected:
                places_BHK = decided(select).long()
            is_selected_BHN = there_BN.new_zeros(B, H, N + 1).scatter(2, places_BHK, True)[..., :N]
        return _Selected(places_BHK.clamp(max=N - 1), places_BHK < N, is_selected_BHN)

    def _seen(self, q: Tensor, k: Tensor, grid: Grid, around: int) -> groups.Seen:
        """The blocks around, and the best further ones."""
        C = grid.num_blocks
        numbers_C = torch.arange(C, device=q.device)
        blocks = numbers_C[:, None] + torch.arange(-around, around + 1, device=q.device)
        counts_B111 = ((grid.ends_B + grid.size - 1) // grid.size)[:, None, None, None]
        there = (blocks >= 0) & (blocks < counts_B111)
        blocks = blocks[None, None]
        if not self.config.num_blocks:
            return groups.Seen(blocks, there, 2 * around + 1)

        def best() -> Tensor:
            scores_BHCC = grid.means(q) @ grid.means(k).mT
            usable = (numbers_C < counts_B111) & ((numbers_C[:, None] - numbers_C).abs() > around)
            further, found = greatest(scores_BHCC, usable, self.config.num_blocks)
            return further.where(found, C).int()

        with torch.no_grad():
            further = decided(best).long()
        shape = (*further.shape[:3], -1)
        blocks = torch.cat([blocks.expand(shape), further.clamp(max=C - 1)], 3)
        return groups.Seen(blocks, torch.cat([there.expand(shape), further < C], 3), 2 * around + 1)

    def _segments(self, k: Tensor, v: Tensor, grid: Grid, seen: groups.Seen, selected: _Selected) -> tuple[Keys, Keys]:
        """Segments of which a block sees nothing, for all to share, and what it does not see of the others."""
        common = groups.Cells(grid.ends_B, grid.length, grid.size, self.config.num_landmarks)
        cells = common.sums(k, v, selected.places_BHK, selected.there_BHK)
        whole = common.whole(cells)
        listed, is_first, touched = common.seen_in_part(seen)
        left = common.left(whole, cells, listed, seen)
        k_BHMD, v_BHMD, bias_BHM = groups.Sums(*(x.transpose(1, 2) for x in whole)).keys(k.dtype)
        bias_BHCM = bias_BHM[:, :, None].expand(-1, -1, grid.num_blocks, -1)
        bias_BHCM = bias_BHCM.masked_fill(touched, never(bias_BHM.dtype))
        return Keys(k_BHMD, v_BHMD, bias_BHCM), left.keys(k.dtype, ~is_first.expand_as(left.counts))

    def _further(self, k: Tensor, v: Tensor, grid: Grid, seen: groups.Seen, selected: _Selected) -> Keys:
        """The tokens of the further blocks."""
        blocks, there = (x[..., seen.around :] for x in (seen.blocks_BHCY, seen.there_BHCY))
        places = (blocks[..., None] * grid.size + torch.arange(grid.size, device=k.device)).flatten(3)
        bias = selected.bias_of_others(places, grid, k.dtype)
        bias = bias.masked_fill(~there.repeat_interleave(grid.size, -1), never(bias.dtype))
        places = places.clamp(0, grid.length - 1)
        return Keys(groups.taken(k, places), groups.taken(v, places), bias)


class _Selected(NamedTuple):
    """The selected tokens of each row and head."""

    places_BHK: Tensor
    there_BHK: Tensor
    """bool: False where a row has fewer."""
    is_selected_BHN: Tensor
    """bool: the same tokens."""

    def keys(self, k: Tensor, v: Tensor, blocks: int) -> Keys:
        """For all blocks."""
        index = self.places_BHK[..., None].expand(-1, -1, -1, k.shape[3])
        bias_BHK = finite_bias(self.there_BHK, torch.promote_types(k.dtype, torch.float32))
        bias = bias_BHK[:, :, None].expand(-1, -1, blocks, -1)
        return Keys(k.gather(2, index), v.gather(2, index), bias)

    def bias_of_others(self, places: Tensor, grid: Grid, dtype: torch.dtype) -> Tensor:
        """(B, H, C, K): zero for tokens of the row that are not selected.

        Args:
            places: (B or 1, H or 1, C, K), also beyond the row.
            dtype: of the keys.
        """
        B, H, N = self.is_selected_BHN.shape
        there = (places >= 0) & (places < grid.ends_B[:, None, None, None])
        is_selected = groups.taken(self.is_selected_BHN, places.clamp(0, N - 1).expand(B, H, -1, -1))
        return finite_bias(there & ~is_selected, torch.promote_types(dtype, torch.float32))


def _joined(one: Keys, other: Keys) -> Keys:
    dtype = other.bias.dtype
    return Keys(
        torch.cat([one.k, other.k], -2),
        torch.cat([one.v, other.v], -2),
        torch.cat([one.bias.to(dtype), other.bias], -1),
    )
