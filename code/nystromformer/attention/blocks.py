"""Attention of blocks of tokens to the blocks around them, in time and memory O(N).

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, K keys of a block and those around it, G keys that
all blocks attend to, D head dim, E dilation, L every E-th token.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import written_out
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
    dilation: int = 1,
) -> Tensor:
    """softmax over the tokens of a token's own block, of those around it, and over keys that all have in common.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
        around: blocks on either side.
        reach: tokens on either side that are attended to at most; None: all of these blocks.
        extra: what all blocks attend to, too.
        dilation: E; blocks, their neighbours and the reach are among tokens at multiples of this distance.

    Returns:
        (B, H, N, D); a token that does not count gets something finite.
    """
    # In a graph for many lengths, blocks of every E-th token are quotients of quotients, which take minutes to trace.
    if dilation > 1 and torch.compiler.is_compiling():
        return _by_index(q_BHND, k_BHND, v_BHND, lengths_B, size, around, reach, extra, dilation)
    B, _, N, _ = q_BHND.shape
    if dilation > 1:
        # Tokens at that distance see nobody between them: they are a row of their own.
        q, k, v = (_every(x.transpose(1, 2), dilation).transpose(1, 2) for x in (q_BHND, k_BHND, v_BHND))
        ends_B1 = torch.full((B, 1), N, device=q.device) if lengths_B is None else lengths_B[:, None]
        lengths_BE = (ends_B1 + dilation - 1 - torch.arange(dilation, device=q.device)) // dilation
        if extra is not None:
            k_BHGD, v_BHGD, there_BG = (x.repeat_interleave(dilation, 0) for x in extra[:3])
            extra = Extra(k_BHGD, v_BHGD, there_BG, _every(extra.repeated_BN, dilation))
        out = attend_to_neighbours(q, k, v, lengths_BE.flatten(), size, around, reach, extra)
        out_BLEHD = out.transpose(1, 2).unflatten(0, (B, dilation)).transpose(1, 2)
        return out_BLEHD.flatten(1, 2)[:, :N].transpose(1, 2)
    keys_CK = Grid(k_BHND, lengths_B, size).places(around)
    dtype = torch.promote_types(q_BHND.dtype, torch.float32)
    bias = finite_bias(_allowed(lengths_B, N, keys_CK, size, around, reach, extra), dtype)[:, None]
    shared = None
    if extra is not None:
        common = finite_bias(extra.there_BG, dtype)[:, None, None].expand(-1, -1, keys_CK.shape[0], -1)
        shared = Keys(extra.k_BHGD, extra.v_BHGD, common)
    return attend_to_parts(q_BHND, k_BHND, v_BHND, bias, size, around, shared)


def _by_index(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths_B: Tensor | None,
    size: int,
    around: int,
    reach: int | None,
    extra: Extra | None,
    dilation: int,
) -> Tensor:
    """The same by gathering, so that one exported program serves every length: no view asks for one that blocks divide,
    and behind the last block stands another.
    """
    N, device = q.shape[2], q.device
    blocks = ((N + dilation - 1) // dilation + size - 1) // size + 1
    numbers_C1 = torch.arange(blocks * dilation, device=device)[:, None]
    starts_C1, offsets_C1 = numbers_C1 // dilation * size, numbers_C1 % dilation
    queries_CS = (starts_C1 + torch.arange(size, device=device)) * dilation + offsets_C1
    nearby = torch.arange((2 * around + 1) * size, device=device) - around * size
    keys_CK = (starts_C1 + nearby) * dilation + offsets_C1
    allowed = _allowed(lengths_B, N, keys_CK, size, around, reach, extra)
    k, v = (x[:, :, keys_CK.clamp(0, N - 1)] for x in (k, v))
    if extra is not None:
        k, v = (
            torch.cat([x, common[:, :, None].expand(-1, -1, blocks * dilation, -1, -1)], 3)
            for x, common in ((k, extra.k_BHGD), (v, extra.v_BHGD))
        )
        common_BCSG = extra.there_BG[:, None, None].expand(-1, keys_CK.shape[0], allowed.shape[2], -1)
        allowed = torch.cat([allowed.expand(common_BCSG.shape[0], -1, -1, -1), common_BCSG], 3)
    bias = finite_bias(allowed, q.dtype)[:, None]
    out_BHCSD = written_out(q[:, :, queries_CS.clamp(max=N - 1)], k, v, bias)
    tokens_N = torch.arange(N, device=device)
    within_N = tokens_N // dilation
    return out_BHCSD[:, :, within_N // size * dilation + tokens_N % dilation, within_N % size]


def _every(x: Tensor, step: int) -> Tensor:
    """(B, N, …) -> (B·E, L, …): of each row E rows with every E-th token; zeros behind them if E does not divide N."""
    B, N = x.shape[:2]
    length = -(-N // step)
    padded_BLX = F.pad(x.reshape(B, N, -1), (0, 0, 0, length * step - N))
    return padded_BLX.reshape(B, length, step, -1).transpose(1, 2).reshape(B * step, length, *x.shape[2:])


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
