"""Sparse Sinkhorn attention (Tay et al., "Sparse Sinkhorn Attention", ICML 2020): blocks, and a sorting of them.

Shapes: B batch, H heads, X batch times heads, N tokens, S tokens of a block, C blocks, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.grid import Grid
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.scores import default_scale
from nystromformer.attention.tracing import is_exporting, without_autocast
from nystromformer.config.attention.methods import SinkhornConfig


class SinkhornAttention(RowsAttention):
    """softmax over a token's own block and over the block that is sorted to the same place, in one.

    Time O(N S + N²/S), memory O(N S + N²/S²). (The paper counts scores alone, of tokens within blocks and of blocks;
    N²/S is the sorting itself, a product of a matrix of N/S by N/S with the tokens.)

    The sorting is a matrix R of blocks by blocks: the t-th token of the i-th sorted block is
    Σⱼ R[i, j] times the t-th token of block j, for keys and for values. R is exp(scores / temperature), of which rows
    and columns are divided by their sums in turn, as logarithms and in float32.

    - Their sorting network learns a score for each place up to a longest input. Here the scores are q̄ᵢᵀk̄ⱼ/√D of the
      blocks' mean queries and keys, as public code offers, too: nothing is learned for a length, and every length will
      do. Their Gumbel noise in training is left out: the output is a function of the input.
    - A row's last block may have fewer tokens; at its other places it adds nothing to the sums. Such a place weighs in
      the softmax by the share of R[i, :] that belongs to blocks with a token there: smoothly from 1 to 0 as R puts the
      last block in its place. Of one block alone the share is 0, and what is sorted beside it is itself: such a row
      gets exact softmax attention.
    """

    config: SinkhornConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        B, H, N, _ = q.shape
        rows = [x.flatten(0, 1)[:, None] for x in (q, k, v)]
        grid = Grid(
            rows[0], None if lengths_B is None else lengths_B[:, None].expand(B, H).flatten(), self.config.block_size
        )
        q_XCSD, k_XCSD, v_XCSD = (grid.of(x)[:, 0] for x in rows)
        is_whole = lengths_B is None and not is_exporting() and N % grid.size == 0
        with without_autocast(q):
            dtype = torch.promote_types(q.dtype, torch.float32)
            sums_XCD, key_sums_XCD = (x.sum(2, dtype=dtype) for x in (q_XCSD, k_XCSD))
            scores_XCC = sums_XCD @ key_sums_XCD.mT * (default_scale(self.head_dim) / self.config.temperature)
            scores_XCC = scores_XCC / grid.size**2 if is_whole else _among_blocks(scores_XCC, grid)
            logs_XCC = balanced(scores_XCC, self.config.iterations)
            sorting_XCC = logs_XCC.exp().to(q.dtype)
            keys_XCJD, values_XCJD = (_beside(sorting_XCC, x) for x in (k_XCSD, v_XCSD))
            bias = None if is_whole else _bias(logs_XCC, grid).to(q.dtype)
        out_XCSD = F.scaled_dot_product_attention(q_XCSD, keys_XCJD, values_XCJD, attn_mask=bias)
        return grid.flat(out_XCSD[:, None])[:, 0].unflatten(0, (B, H))


def balanced(logs_XCC: Tensor, iterations: int) -> Tensor:
    """Logarithms of matrices whose columns add up to one, and whose rows do so the better the more iterations; with
    enough of them both, by Sinkhorn's theorem.

    Args:
        logs_XCC: logarithms of the matrices to begin with; -inf is possible, but for a whole row or column.
    """
    for _ in range(iterations):
        logs_XCC = logs_XCC - logs_XCC.logsumexp(2, keepdim=True)
        logs_XCC = logs_XCC - logs_XCC.logsumexp(1, keepdim=True)
    return logs_XCC


def _among_blocks(scores_XCC: Tensor, grid: Grid) -> Tensor:
    """Scores of the blocks' means from those of their sums. What is no block of the row is sorted to its own place."""
    counts_XC = grid.there().sum(2)
    is_block_XC = counts_XC > 0
    counts_XC = counts_XC.clamp_min(1).to(scores_XCC.dtype)
    scores_XCC = scores_XCC / (counts_XC[:, :, None] * counts_XC[:, None, :])
    both_XCC = is_block_XC[:, :, None] & is_block_XC[:, None, :]
    blocks_C = torch.arange(grid.num_blocks, device=grid.device)
    itself_CC = torch.where(blocks_C[:, None] == blocks_C, 0.0, float("-inf")).to(scores_XCC.dtype)
    return torch.where(both_XCC, scores_XCC, itself_CC)


def _bias(logs_XCC: Tensor, grid: Grid) -> Tensor:
    """(X, C, 1, 2 S): what is added to the scores of a block's tokens and of those sorted beside it."""
    there_XCS = grid.there()
    is_last_XC = torch.arange(grid.num_blocks, device=grid.device) == (grid.ends_B[:, None] - 1) // grid.size
    places_S = torch.arange(grid.size, device=grid.device)
    # A softmax over nothing is no number: what is no block attends to its first zero.
    own_XCS = torch.where(there_XCS | (places_S == 0), 0.0, float("-inf")).to(logs_XCC.dtype)
    # Of one block alone nothing is left without its last.
    is_alone_X11 = is_last_XC[:, :1, None]
    others_XCC = logs_XCC.masked_fill(is_last_XC[:, None, :], float("-inf")).masked_fill(is_alone_X11, 0.0)
    shares_XC1 = (others_XCC.logsumexp(2) - logs_XCC.logsumexp(2))[..., None]
    left_X11 = (there_XCS.sum(2) * is_last_XC).sum(1)[:, None, None]
    sorted_XCS = torch.where(
        places_S >= left_X11, shares_XC1.masked_fill(is_alone_X11, float("-inf")), torch.zeros_like(shares_XC1)
    )
    return torch.cat([own_XCS.expand_as(sorted_XCS), sorted_XCS], dim=2)[:, :, None]


def _beside(sorting_XCC: Tensor, x_XCSD: Tensor) -> Tensor:
    """(X, C, 2 S, D): each block, and the one that is sorted to its place."""
    flat_XCF = x_XCSD.flatten(2)
    return torch.cat([flat_XCF, sorting_XCC @ flat_XCF], dim=2).unflatten(2, (-1, x_XCSD.shape[3]))
