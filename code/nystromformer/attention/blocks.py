"""Attention of blocks of tokens to the blocks around them, in time and memory O(N).

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, K keys of a block and those around it, D head dim.
"""

import torch
from torch import Tensor

from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.grid import Grid
from nystromformer.attention.parts import Keys, attend_to_parts
from nystromformer.attention.scores import finite_bias


def attend_to_neighbours(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    lengths_B: Tensor | None,
    size: int,
    around: int,
    reach: int | None = None,
    tokens: GlobalTokens | None = None,
) -> Tensor:
    """softmax over the tokens of a token's own block, of those around it, and over global tokens, each once.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
        around: blocks on either side.
        reach: tokens on either side that are attended to at most; None: all of these blocks.
        tokens: what all blocks attend to, too.

    Returns:
        (B, H, N, D); a token that does not count gets something finite.
    """
    grid = Grid(k_BHND, lengths_B, size)
    keys_CK = grid.places(around)
    dtype = torch.promote_types(q_BHND.dtype, torch.float32)
    there_BCK = (keys_CK >= 0) & (keys_CK < grid.ends_B[:, None, None])
    if tokens is not None:
        there_BCK = there_BCK & ~tokens.is_global_BN[:, keys_CK.clamp(0, grid.length - 1)]
    allowed_BCQK = there_BCK[:, :, None]
    if reach is not None:
        queries_S1 = torch.arange(size, device=grid.device)[:, None] + around * size
        distance_SK = (queries_S1 - torch.arange(keys_CK.shape[1], device=grid.device)).abs()
        allowed_BCQK = allowed_BCQK & (distance_SK <= reach)
    bias = finite_bias(allowed_BCQK, dtype)[:, None]
    shared = None
    if tokens is not None:
        common = finite_bias(tokens.there_BG, dtype)[:, None, None].expand(-1, -1, keys_CK.shape[0], -1)
        shared = Keys(tokens.taken(k_BHND), tokens.taken(v_BHND), common)
    return attend_to_parts(q_BHND, k_BHND, v_BHND, bias, size, around, shared)
