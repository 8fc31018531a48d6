"""Multi-resolution attention (Zeng et al., "Multi Resolution Analysis (MRA) for Approximate Self-Attention", 2022).

Written from the paper's equations. Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, W blocks that a
query or a block of queries chooses, X queries or blocks of queries that choose, T tiles, E queries of all tiles, D head
dim.
"""

from typing import Literal

import torch
from torch import Tensor

from nystromformer.attention.base import default_scale
from nystromformer.attention.choice import block_means, greatest
from nystromformer.attention.decisions import decided
from nystromformer.attention.grid import Grid
from nystromformer.attention.parts import never
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.tiles import Coarse, Tiles, attend_to_tiles

Choice = Literal["head", "block", "query"]


class MraAttention(RowsAttention):
    """MRA-2: softmax over the tokens of the blocks that matter most, and over the means of all other blocks.

    With means Q̂, K̂ and V̂ of blocks, and L = Q̂K̂ᵀ/√D, a query of block x meets the tokens of the chosen blocks y one by
    one, with weights exp(q·k/√D), and every other block as a whole: its mean value with a weight of exp(L_xy) for each
    of its tokens. Whichever way blocks are chosen, those around a block and the first ones of a row are always chosen,
    and of equal scores the earlier is taken.

    The scores of all pairs of blocks cost O((N/S)²·D) time and O((N/S)²) memory for each head, with "query" O(N²/S):
    all else is linear in N. A row of at most `num_blocks`·`block_size` tokens gets exact softmax attention.

    Args:
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        block_size: S, counted among a row's valid tokens.
        num_blocks: W.
        neighbours: blocks on either side that are always chosen.
        num_first_blocks: first blocks of a row that are always chosen.
        choice: "head": the paper's. Over all pairs of blocks of a head, the W·C greatest L_xy − max L_x·. "block": each
            block of queries chooses W blocks. "query": each query chooses W blocks by q·K̂_y, which takes L_xy's place
            for it.
        coarse: whether the blocks that are not chosen enter by their means; without is the paper's MRA-2-s.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        block_size: int = 32,
        num_blocks: int = 8,
        neighbours: int = 0,
        num_first_blocks: int = 0,
        choice: Choice = "head",
        coarse: bool = True,
        conv_kernel_size: int | None = None,
        ignore_mask: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        if block_size < 1 or neighbours < 0 or num_first_blocks < 0:
            raise ValueError(
                f"block_size must be at least 1, neighbours and num_first_blocks at least 0, found {block_size}, "
                f"{neighbours} and {num_first_blocks}"
            )
        always = 2 * neighbours + 1 + num_first_blocks
        if num_blocks < always:
            raise ValueError(
                f"num_blocks must be at least {always}, for the blocks that are always chosen (2·neighbours + 1 + "
                f"num_first_blocks), found {num_blocks}"
            )
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.neighbours = neighbours
        self.num_first_blocks = num_first_blocks
        self.choice = choice
        self.coarse = coarse

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            grid = Grid(k, None if lengths_B is None else lengths_B.clamp(min=1), self.block_size)
            means_BHCD = block_means(k, grid)
            queries = q.to(means_BHCD.dtype) if self.choice == "query" else block_means(q, grid)
            scores_BHXC = queries @ means_BHCD.mT * default_scale(self.head_dim)
            places_BCS = grid.places() < grid.ends_B[:, None, None]
            counts_BC = places_BCS.sum(2)
            blocks_BHXW, there_BHXW = self._chosen(scores_BHXC.detach(), counts_BC > 0)
            if self.choice == "query":
                tiles = _tiles_of_queries(blocks_BHXW, there_BHXW, grid)
            else:
                tiles = _tiles_of_blocks(blocks_BHXW, there_BHXW, grid)
            coarse = None
            if self.coarse:
                coarse = self._coarse(scores_BHXC, counts_BC, blocks_BHXW, there_BHXW, block_means(v, grid), grid)
            return attend_to_tiles(q, k, v, grid, tiles, coarse)

    def _chosen(self, scores_BHXC: Tensor, usable_BC: Tensor) -> tuple[Tensor, Tensor]:
        """For each query or block of queries the chosen blocks, (B, H, X, W or, of "head", C), and bool, which are."""
        C = scores_BHXC.shape[3]
        usable_B11C = usable_BC[:, None, None]
        numbers_C, own_X1 = self._numbers(scores_BHXC)
        always_XC = (numbers_C - own_X1).abs() <= self.neighbours
        always_XC = always_XC | (numbers_C < self.num_first_blocks)

        def choose() -> Tensor:
            least = never(scores_BHXC.dtype)
            scores = scores_BHXC.masked_fill(~usable_B11C, least)
            scores = (scores - scores.amax(-1, keepdim=True)).masked_fill(always_XC, 1.0)
            if self.choice != "head":
                blocks, there = greatest(scores, usable_B11C, self.num_blocks)
                return blocks.where(there, C).int()
            # Blocks of queries behind a row's end choose nothing.
            usable = usable_B11C & usable_BC[:, None, :, None]
            pairs, there = greatest(scores.flatten(2), usable.flatten(2), C * self.num_blocks)
            budget_B = usable_BC.sum(1) * self.num_blocks
            there = there & (torch.arange(C * self.num_blocks, device=pairs.device) < budget_B[:, None, None])
            return pairs.where(there, C * C).int()

        with torch.no_grad():
            chosen = decided(choose).long()
        if self.choice != "head":
            return chosen.clamp(max=C - 1), chosen < C
        return chosen, chosen < C * C

    def _numbers(self, scores_BHXC: Tensor) -> tuple[Tensor, Tensor]:
        """The blocks' numbers, (C,), and the own one of each query or block of queries, (X, 1)."""
        X, C = scores_BHXC.shape[2:]
        device = scores_BHXC.device
        own_X1 = torch.arange(X, device=device)[:, None]
        return torch.arange(C, device=device), own_X1 // self.block_size if self.choice == "query" else own_X1

    def _coarse(
        self, scores_BHXC: Tensor, counts_BC: Tensor, chosen: Tensor, there: Tensor, values_BHCD: Tensor, grid: Grid
    ) -> Coarse:
        """All blocks that are not chosen, as one key."""
        B, H, X, C = scores_BHXC.shape
        if self.choice == "head":
            flat = torch.zeros(B, H, X * C + 1, dtype=torch.bool, device=chosen.device)
            flat = flat.scatter(2, chosen, True)[..., :-1]
            is_chosen_BHXC = flat.unflatten(2, (X, C))
        else:
            none_BHXL = torch.zeros(B, H, X, C + 1, dtype=torch.bool, device=chosen.device)
            is_chosen_BHXC = none_BHXL.scatter(3, chosen.where(there, C), True)[..., :-1]
        out_of = is_chosen_BHXC | (counts_BC == 0)[:, None, None]
        logits = scores_BHXC + counts_BC.clamp(min=1).to(scores_BHXC.dtype).log()[:, None, None]
        logits = logits.masked_fill(out_of, never(logits.dtype))
        values, sums = torch.softmax(logits, -1) @ values_BHCD, torch.logsumexp(logits, -1)
        if self.choice != "query":
            blocks_N = torch.arange(grid.length, device=sums.device) // self.block_size
            values, sums = values[:, :, blocks_N], sums[:, :, blocks_N]
        return Coarse(values, sums)

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, block_size={self.block_size}, num_blocks={self.num_blocks}, "
            f"neighbours={self.neighbours}, num_first_blocks={self.num_first_blocks}, choice={self.choice!r}, "
            f"coarse={self.coarse}"
        )


def _tiles_of_blocks(chosen: Tensor, there: Tensor, grid: Grid) -> Tiles:
    """A tile for each block of queries and each block that it chose."""
    N, C, size = grid.length, grid.num_blocks, grid.size
    if chosen.ndim == 3:  # pairs of all blocks
        own_BHT = chosen // C
        blocks_BHT = chosen - own_BHT * C  # no remainder: ONNX's converter takes none by a length
    else:
        own_BHT = torch.arange(C, device=chosen.device)[:, None].expand_as(chosen).flatten(2)
        blocks_BHT, there = chosen.flatten(2), there.flatten(2)
    places_BHTS = own_BHT[..., None] * size + torch.arange(size, device=chosen.device)
    return Tiles(places_BHTS.where(there[..., None] & (places_BHTS < N), N), blocks_BHT.where(there, 0))


def _tiles_of_queries(chosen_BHNW: Tensor, there_BHNW: Tensor, grid: Grid) -> Tiles:
    """Tiles of queries that chose the same block: those of a block in their order, its last tile filled up."""
    B, H, N, W = chosen_BHNW.shape
    C, size = grid.num_blocks, grid.size
    tiles = (N * W + size - 1) // size + C
    blocks_BHE = chosen_BHNW.where(there_BHNW, C).flatten(2)
    order_BHE = torch.argsort(blocks_BHE, dim=2, stable=True)
    sorted_BHE = blocks_BHE.gather(2, order_BHE)
    counts_BHL = torch.zeros(B, H, C + 1, dtype=torch.int64, device=chosen_BHNW.device)
    counts_BHL = counts_BHL.scatter_add(2, blocks_BHE, torch.ones_like(blocks_BHE))
    ends_BHL = ((counts_BHL + size - 1) // size).cumsum(2)
    firsts_BHL = ends_BHL - (counts_BHL + size - 1) // size
    ranks_BHE = torch.arange(N * W, device=order_BHE.device) - (counts_BHL.cumsum(2) - counts_BHL).gather(2, sorted_BHE)
    slots_BHE = firsts_BHL.gather(2, sorted_BHE) * size + ranks_BHE
    none = tiles * size
    slots_BHE = slots_BHE.where(sorted_BHE < C, none)
    queries_BHX = torch.full((B, H, none + 1), N, device=order_BHE.device).scatter(2, slots_BHE, order_BHE // W)
    numbers_T = torch.arange(tiles, device=order_BHE.device)
    blocks_BHT = (numbers_T[:, None] >= ends_BHL[:, :, None, :C]).sum(3).clamp(max=C - 1)
    return Tiles(queries_BHX[:, :, numbers_T[:, None] * size + torch.arange(size, device=order_BHE.device)], blocks_BHT)
