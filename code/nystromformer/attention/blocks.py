"""Attention of blocks of tokens to the blocks around them, in time and memory O(N).

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, W blocks that a block attends to, G keys that
all blocks attend to, K keys of a block (W·S + G), D head dim, E dilation, L every E-th token.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import is_exporting


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
    before: int,
    after: int,
    reach: int | None = None,
    extra: Extra | None = None,
    dilation: int = 1,
) -> Tensor:
    """softmax over the tokens of a token's own block, of those around it, and over keys that all have in common.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
        before, after: blocks before and behind its own.
        reach: tokens on either side that are attended to at most; None: all of these blocks.
        extra: what all blocks attend to, too.
        dilation: E; blocks, their neighbours and the reach are among tokens at multiples of this distance.

    Returns:
        (B, H, N, D); a token that does not count gets something finite.
    """
    # In a graph for many lengths, blocks of every E-th token are quotients of quotients, which take minutes to trace.
    if is_exporting() or (dilation > 1 and torch.compiler.is_compiling()):
        return _by_index(q_BHND, k_BHND, v_BHND, lengths_B, size, before, after, reach, extra, dilation)
    B, H, N, _ = q_BHND.shape
    if dilation > 1:
        # Tokens at that distance see nobody between them: they are a row of their own.
        q, k, v = (_every(x.transpose(1, 2), dilation).transpose(1, 2) for x in (q_BHND, k_BHND, v_BHND))
        ends_B1 = torch.full((B, 1), N, device=q.device) if lengths_B is None else lengths_B[:, None]
        lengths_BE = (ends_B1 + dilation - 1 - torch.arange(dilation, device=q.device)) // dilation
        if extra is not None:
            k_BHGD, v_BHGD, there_BG = (x.repeat_interleave(dilation, 0) for x in extra[:3])
            extra = Extra(k_BHGD, v_BHGD, there_BG, _every(extra.repeated_BN, dilation))
        out = attend_to_neighbours(q, k, v, lengths_BE.flatten(), size, before, after, reach, extra)
        out_BLEHD = out.transpose(1, 2).unflatten(0, (B, dilation)).transpose(1, 2)
        return out_BLEHD.flatten(1, 2)[:, :N].transpose(1, 2)
    blocks = -(-N // size)
    q = _cut(q_BHND, blocks, size, 0, 0, None)
    k = _cut(k_BHND, blocks, size, before, after, None if extra is None else extra.k_BHGD)
    v = _cut(v_BHND, blocks, size, before, after, None if extra is None else extra.v_BHGD)
    keys_C1 = (torch.arange(blocks, device=q.device)[:, None] - before) * size
    keys_CK = keys_C1 + torch.arange((before + 1 + after) * size, device=q.device)
    allowed = _allowed(lengths_B, N, keys_CK, size, before, reach, extra)
    bias = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill(~allowed, float("-inf"))
    bias = bias.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).reshape(B, blocks * size, H, -1)[:, :N].transpose(1, 2)


def _by_index(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths_B: Tensor | None,
    size: int,
    before: int,
    after: int,
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
    nearby = torch.arange((before + 1 + after) * size, device=device) - before * size
    keys_CK = (starts_C1 + nearby) * dilation + offsets_C1
    allowed = _allowed(lengths_B, N, keys_CK, size, before, reach, extra)
    k, v = (x[:, :, keys_CK.clamp(0, N - 1)] for x in (k, v))
    if extra is not None:
        k, v = (
            torch.cat([x, common[:, :, None].expand(-1, -1, blocks * dilation, -1, -1)], 3)
            for x, common in ((k, extra.k_BHGD), (v, extra.v_BHGD))
        )
    out_BHCSD = F.scaled_dot_product_attention(q[:, :, queries_CS.clamp(max=N - 1)], k, v, attn_mask=allowed[:, None])
    tokens_N = torch.arange(N, device=device)
    within_N = tokens_N // dilation
    return out_BHCSD[:, :, within_N // size * dilation + tokens_N % dilation, within_N % size]


def _every(x: Tensor, step: int) -> Tensor:
    """(B, N, …) -> (B·E, L, …): of each row E rows with every E-th token; zeros behind them if E does not divide N."""
    B, N = x.shape[:2]
    length = -(-N // step)
    padded_BLX = F.pad(x.reshape(B, N, -1), (0, 0, 0, length * step - N))
    return padded_BLX.reshape(B, length, step, -1).transpose(1, 2).reshape(B * step, length, *x.shape[2:])


def _cut(x_BHND: Tensor, blocks: int, size: int, before: int, after: int, common_BHGD: Tensor | None) -> Tensor:
    """(B·C, H, K, D): each block, with those around it, zeros beyond the first and the last token, and what all have in
    common.

    Padding and concatenation are of three sizes: of more, what PyTorch gives differs in its layout from what it expects
    when it compiles.
    """
    B, H, N, D = x_BHND.shape
    padded_BLX = F.pad(x_BHND.transpose(1, 2).flatten(2), (0, 0, before * size, (blocks + after) * size - N))
    whole_BCX = padded_BLX.reshape(B, before + blocks + after, size * H * D)
    parts = [whole_BCX[:, shift : shift + blocks] for shift in range(before + 1 + after)]
    if common_BHGD is not None:
        parts.append(common_BHGD.transpose(1, 2).flatten(1)[:, None].expand(-1, blocks, -1))
    cut_BCX = torch.cat(parts, dim=2) if len(parts) > 1 else whole_BCX
    return cut_BCX.reshape(B * blocks, -1, H, D).transpose(1, 2)


def _allowed(
    lengths_B: Tensor | None,
    length: int,
    keys_CK: Tensor,
    size: int,
    before: int,
    reach: int | None,
    extra: Extra | None,
) -> Tensor:
    """(B or 1, C, S, K) bool; each token at least itself, unless the keys that all have in common repeat it.

    Args:
        keys_CK: the place of each key of the blocks, also beyond the row's ends.
    """
    device = keys_CK.device
    blocks, around = keys_CK.shape
    ends_B = torch.tensor([length], device=device) if lengths_B is None else lengths_B
    there_BCK = (keys_CK >= 0) & (keys_CK < ends_B[:, None, None])
    queries_S1 = torch.arange(size, device=device)[:, None] + before * size
    distance_SK = (queries_S1 - torch.arange(around, device=device)).abs()
    allowed = there_BCK[:, :, None, :] | (distance_SK == 0)
    if reach is not None:
        allowed = allowed & (distance_SK <= reach)
    if extra is None:
        return allowed
    repeated_BCK = extra.repeated_BN[:, keys_CK.clamp(0, length - 1)] & there_BCK
    allowed = allowed & ~repeated_BCK[:, :, None, :]
    common_BCSG = extra.there_BG[:, None, None, :].expand(-1, blocks, size, -1)
    return torch.cat([allowed.expand(common_BCSG.shape[0], -1, -1, -1), common_BCSG], 3)
