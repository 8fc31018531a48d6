"""Multi-resolution attention (Zeng et al., "Multi Resolution Analysis (MRA) for Approximate Self-Attention", 2022).

Written from the paper's equations. Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, E pairs of
blocks, D head dim.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.decisions import decided, greatest
from nystromformer.attention.grid import Grid
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.scores import default_scale, never
from nystromformer.attention.tiles import Coarse, Tiles, attend_to_tiles
from nystromformer.attention.tracing import without_autocast
from nystromformer.config.attention.methods import MraConfig


class MraAttention(RowsAttention):
    """MRA-2: softmax over the tokens of the blocks that matter most, and over the means of all other blocks.

    With means Q̂, K̂ and V̂ of blocks, and L = Q̂K̂ᵀ/√D, a query of block x meets the tokens of the chosen blocks y one by
    one, with weights exp(q·k/√D), and every other block as a whole: its mean value with a weight of exp(L_xy) for each
    of its tokens. Of all pairs of blocks of a head the `num_blocks`·C greatest L_xy − max L_x· are chosen, and always
    those around a block; of equal scores the earlier is taken.

    The scores of all pairs of blocks cost O((N/S)²·D) time and O((N/S)²) memory for each head; all else is linear in N.
    A row of at most `num_blocks`·`block_size` tokens gets exact softmax attention.
    """

    config: MraConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        with without_autocast(q):
            grid = Grid(k, None if lengths_B is None else lengths_B.clamp(min=1), self.config.block_size)
            means_BHCD = grid.means(k)
            scores_BHCC = grid.means(q) @ means_BHCD.mT * default_scale(self.head_dim)
            counts_BC = grid.there().sum(2)
            chosen = self._chosen(scores_BHCC.detach(), counts_BC > 0)
            coarse = _coarse(scores_BHCC, counts_BC, chosen, grid.means(v))
            blocks_N = torch.arange(grid.length, device=q.device) // grid.size
            coarse = Coarse(*(x.index_select(2, blocks_N) for x in coarse))
            return attend_to_tiles(q, k, v, grid, _tiles(chosen, grid), coarse)

    def _chosen(self, scores_BHCC: Tensor, usable_BC: Tensor) -> "_Chosen":
        C, count, neighbours = scores_BHCC.shape[3], self.config.num_blocks, self.config.neighbours
        usable_B11C = usable_BC[:, None, None]
        numbers_C = torch.arange(C, device=scores_BHCC.device)
        always_CC = (numbers_C - numbers_C[:, None]).abs() <= neighbours

        def choose() -> Tensor:
            scores = scores_BHCC.masked_fill(~usable_B11C, never(scores_BHCC.dtype))
            scores = (scores - scores.amax(-1, keepdim=True)).masked_fill(always_CC, 1.0)
            # Blocks of queries behind a row's end choose nothing.
            usable = usable_B11C & usable_BC[:, None, :, None]
            pairs, there = greatest(scores.flatten(2), usable.flatten(2), C * count)
            budget_B = usable_BC.sum(1) * count
            there = there & (torch.arange(C * count, device=pairs.device) < budget_B[:, None, None])
            return pairs.where(there, C * C).int()

        with torch.no_grad():
            found = decided(choose).long()
        rows_BHE = found // C
        # No remainder: ONNX's converter takes none by a length.
        return _Chosen(rows_BHE, found - rows_BHE * C, found < C * C)


class _Chosen(NamedTuple):
    """Pairs of a block of queries and a block that it chose; (B, H, E) each."""

    rows_BHE: Tensor
    blocks_BHE: Tensor
    there_BHE: Tensor
    """bool: False for what is no pair."""


def _coarse(scores_BHCC: Tensor, counts_BC: Tensor, chosen: _Chosen, values_BHCD: Tensor) -> Coarse:
    """All blocks that are not chosen, as one key of each block of queries."""
    B, H, _, C = scores_BHCC.shape
    pairs_BHE = (chosen.rows_BHE * C + chosen.blocks_BHE).where(chosen.there_BHE, C * C)
    is_chosen_BHE = torch.zeros(B, H, C * C + 1, dtype=torch.bool, device=pairs_BHE.device).scatter(2, pairs_BHE, True)
    out_of = is_chosen_BHE[..., :-1].unflatten(2, (C, C)) | (counts_BC == 0)[:, None, None]
    logits = scores_BHCC + counts_BC.clamp(min=1).to(scores_BHCC.dtype).log()[:, None, None]
    logits = logits.masked_fill(out_of, never(logits.dtype))
    return Coarse(torch.softmax(logits, -1) @ values_BHCD, torch.logsumexp(logits, -1))


def _tiles(chosen: _Chosen, grid: Grid) -> Tiles:
    """A tile for each block of queries and each block that it chose."""
    N, size = grid.length, grid.size
    places_BHES = chosen.rows_BHE[..., None] * size + torch.arange(size, device=grid.device)
    is_query_BHES = chosen.there_BHE[..., None] & (places_BHES < N)
    return Tiles(places_BHES.where(is_query_BHES, N), chosen.blocks_BHE.where(chosen.there_BHE, 0))
