"""Attention of blocks of tokens to lists of blocks, in time and memory linear in what is listed.

Shapes: B batch, H heads, N tokens, Q of them that attend, S tokens of a block, C blocks of those Q, W listed blocks, X
tokens that all attend to, K keys (W·S), D head dim.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import written_out
from nystromformer.attention.bias import infinite_bias
from nystromformer.attention.grid import Grid
from nystromformer.attention.tracing import is_exporting


class Common(NamedTuple):
    """Keys that all tokens of a row attend to, beside those of listed blocks."""

    k_BHXD: Tensor
    v_BHXD: Tensor
    there_BX: Tensor
    """bool: False where there is no such key; what stands there must be finite."""


def attend_to_blocks(
    q_BHQD: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    blocks_BHCW: Tensor,
    allowed_BHCK: Tensor,
    size: int,
    common: Common | None = None,
) -> Tensor:
    """softmax over the tokens of the blocks that are listed for a token's block, and over common keys.

    Args:
        blocks_BHCW: (B or 1, H, C, W), for each block of the queries the numbers of blocks of the keys.
        allowed_BHCK: (B or 1, H, C, W·S) bool, which of their tokens are attended to. Each block attends to something.
        size: S.

    Returns:
        (B, H, Q, D).
    """
    B, H = q_BHQD.shape[:2]
    queries = Grid(q_BHQD, None, size)
    if common is not None and not is_exporting():
        # Whole blocks of them are gathered with the others.
        short = -common.there_BX.shape[1] % size
        k_BHXD, v_BHXD = (
            F.pad(x.flatten(0, 1), (0, 0, 0, short)).unflatten(0, (B, H)) for x in (common.k_BHXD, common.v_BHXD)
        )
        common = Common(k_BHXD, v_BHXD, F.pad(common.there_BX, (0, short)))
    bias_BHCK = infinite_bias(allowed_BHCK, q_BHQD.dtype).expand(B, -1, -1, -1)
    if common is not None:
        bias_BX = infinite_bias(common.there_BX, q_BHQD.dtype)
        bias_BHCX = bias_BX[:, None, None].expand(-1, H, bias_BHCK.shape[2], -1)
        bias_BHCK = torch.cat([bias_BHCK, bias_BHCX], 3)
    blocks_BHCW = blocks_BHCW.expand(B, -1, -1, -1)
    keys_BHCKD, values_BHCKD = (
        _gathered(x, own, blocks_BHCW, size)
        for x, own in (
            (k_BHND, None if common is None else common.k_BHXD),
            (v_BHND, None if common is None else common.v_BHXD),
        )
    )
    q_BHCSD, bias_BHC1K = queries.of(q_BHQD), bias_BHCK[:, :, :, None]
    if is_exporting():
        return queries.flat(written_out(q_BHCSD, keys_BHCKD, values_BHCKD, bias_BHC1K))
    # Of four sizes the fused kernels take it.
    q, k, v, bias = (x.flatten(0, 1) for x in (q_BHCSD, keys_BHCKD, values_BHCKD, bias_BHC1K))
    return queries.flat(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).unflatten(0, (B, H)))


def _gathered(x_BHND: Tensor, common_BHXD: Tensor | None, blocks_BHCW: Tensor, size: int) -> Tensor:
    """(B, H, C, W·S + X, D): the listed blocks, and the common tokens behind them."""
    B, H, N, D = x_BHND.shape
    if is_exporting():
        return _gathered_by_token(x_BHND, common_BHXD, blocks_BHCW, size)
    x_XLD = F.pad(x_BHND.flatten(0, 1), (0, 0, 0, -N % size))
    first_common, count = -(-N // size), 0
    if common_BHXD is not None:
        x_XLD = torch.cat([x_XLD, common_BHXD.flatten(0, 1)], 1)
        count = common_BHXD.shape[2] // size
        common_X = torch.arange(first_common, first_common + count, device=x_BHND.device)
        blocks_BHCW = torch.cat([blocks_BHCW, common_X.expand(*blocks_BHCW.shape[:3], -1)], 3)
    # Rows of whole blocks: a gather by tokens would read and write in small pieces.
    starts_BH11 = torch.arange(B * H, device=x_BHND.device).view(B, H, 1, 1) * (first_common + count)
    x_YZ = x_XLD.reshape(-1, size * D).index_select(0, (blocks_BHCW + starts_BH11).flatten())
    return x_YZ.view(B, H, blocks_BHCW.shape[2], -1, D)


def _gathered_by_token(x_BHND: Tensor, common_BHXD: Tensor | None, blocks_BHCW: Tensor, size: int) -> Tensor:
    B, H, N, _ = x_BHND.shape
    device = x_BHND.device
    tokens_BHCK = (blocks_BHCW[..., None] * size + torch.arange(size, device=device)).flatten(3).clamp(max=N - 1)
    rows_B111 = torch.arange(B, device=device)[:, None, None, None]
    x_BHCKD = x_BHND[rows_B111, torch.arange(H, device=device)[:, None, None], tokens_BHCK]
    if common_BHXD is not None:
        common = common_BHXD[:, :, None].expand(-1, -1, blocks_BHCW.shape[2], -1, -1)
        x_BHCKD = torch.cat([x_BHCKD, common], 3)
    return x_BHCKD
