"""Multi-resolution attention (Zeng et al., "Multi Resolution Analysis (MRA) for Approximate Self-Attention", 2022).

Written from the paper's equations. Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, W blocks that a
query or a block of queries chooses, X queries or blocks of queries that choose, E pairs of these and blocks, T tiles, D
head dim.
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
    of its tokens. Whichever way blocks are chosen, those around a block are always chosen,
    and of equal scores the earlier is taken.

    The scores of all pairs of blocks cost O((N/S)²·D) time and O((N/S)²) memory for each head, with "query" O(N²/S):
    all else is linear in N. A row of at most `num_blocks`·`block_size` tokens gets exact softmax attention.

    W is `num_blocks`. Over all pairs of blocks of a head (`choice` "head", the paper's) the W·C greatest
    L_xy − max L_x· are chosen; with "block" each block of queries chooses W blocks; with "query" each query does, by
    q·K̂_y, which takes L_xy's place for it.
    """

    config: MraConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        by_query = self.config.choice == "query"
        with without_autocast(q):
            grid = Grid(k, None if lengths_B is None else lengths_B.clamp(min=1), self.config.block_size)
            means_BHCD = grid.means(k)
            queries = q.to(means_BHCD.dtype) if by_query else grid.means(q)
            scores_BHXC = queries @ means_BHCD.mT * default_scale(self.head_dim)
            counts_BC = grid.there().sum(2)
            chosen = self._chosen(scores_BHXC.detach(), counts_BC > 0)
            tiles = _tiles_of_queries(chosen, grid) if by_query else _tiles_of_blocks(chosen, grid)
            coarse = _coarse(scores_BHXC, counts_BC, chosen, grid.means(v))
            if not by_query:
                blocks_N = torch.arange(grid.length, device=q.device) // grid.size
                coarse = Coarse(*(x.index_select(2, blocks_N) for x in coarse))
            return attend_to_tiles(q, k, v, grid, tiles, coarse)

    def _chosen(self, scores_BHXC: Tensor, usable_BC: Tensor) -> "_Chosen":
        config, (X, C) = self.config, scores_BHXC.shape[2:]
        usable_B11C = usable_BC[:, None, None]
        numbers_C = torch.arange(C, device=scores_BHXC.device)
        rows_X1 = torch.arange(X, device=scores_BHXC.device)[:, None]
        own_X1 = rows_X1 // config.block_size if config.choice == "query" else rows_X1
        always_XC = (numbers_C - own_X1).abs() <= config.neighbours

        def choose() -> Tensor:
            least = never(scores_BHXC.dtype)
            scores = scores_BHXC.masked_fill(~usable_B11C, least)
            scores = (scores - scores.amax(-1, keepdim=True)).masked_fill(always_XC, 1.0)
            if config.choice != "head":
                blocks, there = greatest(scores, usable_B11C, config.num_blocks)
                return blocks.where(there, C).int()
            # Blocks of queries behind a row's end choose nothing.
            usable = usable_B11C & usable_BC[:, None, :, None]
            pairs, there = greatest(scores.flatten(2), usable.flatten(2), C * config.num_blocks)
            budget_B = usable_BC.sum(1) * config.num_blocks
            there = there & (torch.arange(C * config.num_blocks, device=pairs.device) < budget_B[:, None, None])
            return pairs.where(there, C * C).int()

        with torch.no_grad():
            found = decided(choose).long()
        if config.choice != "head":
            return _Chosen(rows_X1.expand_as(found).flatten(2), found.flatten(2), (found < C).flatten(2))
        rows_BHE = found // C
        # No remainder: ONNX's converter takes none by a length.
        return _Chosen(rows_BHE, found - rows_BHE * C, found < C * C)


class _Chosen(NamedTuple):
    """Pairs of a query, or of a block of queries, and a block that it chose; (B, H, E) each."""

    rows_BHE: Tensor
    blocks_BHE: Tensor
    there_BHE: Tensor
    """bool: False for what is no pair."""


def _coarse(scores_BHXC: Tensor, counts_BC: Tensor, chosen: _Chosen, values_BHCD: Tensor) -> Coarse:
    """All blocks that are not chosen, as one key of each query or block of queries."""
    B, H, X, C = scores_BHXC.shape
    pairs_BHE = (chosen.rows_BHE * C + chosen.blocks_BHE).where(chosen.there_BHE, X * C)
    is_chosen_BHE = torch.zeros(B, H, X * C + 1, dtype=torch.bool, device=pairs_BHE.device).scatter(2, pairs_BHE, True)
    out_of = is_chosen_BHE[..., :-1].unflatten(2, (X, C)) | (counts_BC == 0)[:, None, None]
    logits = scores_BHXC + counts_BC.clamp(min=1).to(scores_BHXC.dtype).log()[:, None, None]
    logits = logits.masked_fill(out_of, never(logits.dtype))
    return Coarse(torch.softmax(logits, -1) @ values_BHCD, torch.logsumexp(logits, -1))


def _tiles_of_blocks(chosen: _Chosen, grid: Grid) -> Tiles:
    """A tile for each block of queries and each block that it chose."""
    N, size = grid.length, grid.size
    places_BHES = chosen.rows_BHE[..., None] * size + torch.arange(size, device=grid.device)
    is_query_BHES = chosen.there_BHE[..., None] & (places_BHES < N)
    return Tiles(places_BHES.where(is_query_BHES, N), chosen.blocks_BHE.where(chosen.there_BHE, 0))


def _tiles_of_queries(chosen: _Chosen, grid: Grid) -> Tiles:
    """Tiles of queries that chose the same block: those of a block in their order, its last tile filled up."""
    B, H, E = chosen.blocks_BHE.shape
    N, C, size = grid.length, grid.num_blocks, grid.size
    tiles = (E + size - 1) // size + C
    blocks_BHE = chosen.blocks_BHE.where(chosen.there_BHE, C)
    order_BHE = torch.argsort(blocks_BHE, dim=2, stable=True)
    sorted_BHE = blocks_BHE.gather(2, order_BHE)
    counts_BHL = torch.zeros(B, H, C + 1, dtype=torch.int64, device=grid.device)
    counts_BHL = counts_BHL.scatter_add(2, blocks_BHE, torch.ones_like(blocks_BHE))
    ends_BHL = ((counts_BHL + size - 1) // size).cumsum(2)
    firsts_BHL = ends_BHL - (counts_BHL + size - 1) // size
    ranks_BHE = torch.arange(E, device=grid.device) - (counts_BHL.cumsum(2) - counts_BHL).gather(2, sorted_BHE)
    slots_BHE = firsts_BHL.gather(2, sorted_BHE) * size + ranks_BHE
    none = tiles * size
    slots_BHE = slots_BHE.where(sorted_BHE < C, none)
    queries_BHX = torch.full((B, H, none + 1), N, device=grid.device)
    queries_BHX = queries_BHX.scatter(2, slots_BHE, chosen.rows_BHE.expand(B, H, -1).gather(2, order_BHE))
    numbers_T = torch.arange(tiles, device=grid.device)
    blocks_BHT = (numbers_T[:, None] >= ends_BHL[:, :, None, :C]).sum(3).clamp(max=C - 1)
    return Tiles(queries_BHX[:, :, numbers_T[:, None] * size + torch.arange(size, device=grid.device)], blocks_BHT)
