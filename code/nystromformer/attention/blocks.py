"""Attention of blocks of tokens to the blocks around them, in time and memory O(N).

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, K keys of a block and those around it, G keys that
all blocks attend to, D head dim.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nystromformer.attention.bias import finite_bias
from nystromformer.attention.grid import Grid
from nystromformer.attention.parts import Keys, attend_to_parts


class Extra(NamedTuple):
    """Keys that all tokens of a row attend to, beside those of the blocks."""

    k_BHGD: Tensor
    v_BHGD: Tensor
    there_BG: Tensor
    """bool: False where there is no such key; what stands there must be finite."""
    repeated_BN: Tensor
    """bool: tokens that are among these keys, and are not attended to once more in the blocks."""


def attend_to_neighbours(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    lengths_B: Tensor | None,
    size: int,
    around: int,
    reach: int | None = None,
    extra: Extra | None = None,
) -> Tensor:
    """softmax over the tokens of a token's own block, of those around it, and over keys that all have in common.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
        around: blocks on either side.
        reach: tokens on either side that are attended to at most; None: all of these blocks.
        extra: what all blocks attend to, too.

    Returns:
        (B, H, N, D); a token that does not count gets something finite.
    """
    keys_CK = Grid(k_BHND, lengths_B, size).places(around)
    dtype = torch.promote_types(q_BHND.dtype, torch.float32)
    bias = finite_bias(_allowed(lengths_B, k_BHND.shape[2], keys_CK, size, around, reach, extra), dtype)[:, None]
    shared = None
    if extra is not None:
        common = finite_bias(extra.there_BG, dtype)[:, None, None].expand(-1, -1, keys_CK.shape[0], -1)
        shared = Keys(extra.k_BHGD, extra.v_BHGD, common)
    return attend_to_parts(q_BHND, k_BHND, v_BHND, bias, size, around, shared)


def _allowed(
    lengths_B: Tensor | None,
    length: int,
    keys_CK: Tensor,
    size: int,
    around: int,
    reach: int | None,
    extra: Extra | None,
) -> Tensor:
    """(B or 1, C, S or 1, K) bool: the keys of the blocks that are attended to, none twice.

    Args:
        keys_CK: the place of each key of the blocks, also beyond the row's ends.
    """
    device = keys_CK.device
    ends_B = torch.tensor([length], device=device) if lengths_B is None else lengths_B
    there_BCK = (keys_CK >= 0) & (keys_CK < ends_B[:, None, None])
    if extra is not None:
        there_BCK = there_BCK & ~extra.repeated_BN[:, keys_CK.clamp(0, length - 1)]
    if reach is None:
        return there_BCK[:, :, None]
    queries_S1 = torch.arange(size, device=device)[:, None] + around * size
    distance_SK = (queries_S1 - torch.arange(keys_CK.shape[1], device=device)).abs()
    return there_BCK[:, :, None] & (distance_SK <= reach)
