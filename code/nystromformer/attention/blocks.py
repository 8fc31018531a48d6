"""Attention of blocks of tokens to the blocks around them, in time and memory O(N).

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks, W blocks that a block attends to, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import is_exporting


def attend_to_neighbours(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    lengths_B: Tensor | None,
    size: int,
    before: int,
    after: int,
    reach: int | None = None,
) -> Tensor:
    """softmax over the tokens of a token's own block and of those around it.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        size: S.
        before, after: blocks before and behind its own.
        reach: tokens on either side that are attended to at most; None: all of these blocks.

    Returns:
        (B, H, N, D); a token that does not count gets its own value.
    """
    if is_exporting():
        return _by_index(q_BHND, k_BHND, v_BHND, lengths_B, size, before, after, reach)
    B, H, N, _ = q_BHND.shape
    blocks = -(-N // size)
    q = _cut(q_BHND, blocks, size, 0, 0)
    k, v = (_cut(x, blocks, size, before, after) for x in (k_BHND, v_BHND))
    allowed = _allowed(lengths_B, N, blocks, size, before, after, reach, q.device)
    bias = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill(~allowed, float("-inf"))
    bias = bias.expand(B, -1, -1, -1).flatten(0, 1)[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).reshape(B, blocks * size, H, -1)[:, :N].transpose(1, 2)


def _by_index(
    q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, size: int, before: int, after: int, reach: int | None
) -> Tensor:
    """The same by gathering, so that one exported program serves every length: no view asks for one that blocks divide,
    and behind the last block stands another.
    """
    N, device = q.shape[2], q.device
    blocks = (N + size - 1) // size + 1
    starts_C1 = torch.arange(blocks, device=device)[:, None] * size
    queries_CS = starts_C1 + torch.arange(size, device=device)
    keys_CK = starts_C1 - before * size + torch.arange((before + 1 + after) * size, device=device)
    allowed = _allowed(lengths_B, N, blocks, size, before, after, reach, device)
    k, v = (x[:, :, keys_CK.clamp(0, N - 1)] for x in (k, v))
    out_BHCSD = F.scaled_dot_product_attention(q[:, :, queries_CS.clamp(max=N - 1)], k, v, attn_mask=allowed[:, None])
    tokens_N = torch.arange(N, device=device)
    return out_BHCSD[:, :, tokens_N // size, tokens_N % size]


def _cut(x_BHND: Tensor, blocks: int, size: int, before: int, after: int) -> Tensor:
    """(B·C, H, W·S, D): each block, with those around it and zeros beyond the first and the last token.

    Padding and concatenation are of three sizes: of more, what PyTorch gives differs in its layout from what it expects
    when it compiles.
    """
    B, H, N, D = x_BHND.shape
    padded_BLX = F.pad(x_BHND.transpose(1, 2).flatten(2), (0, 0, before * size, (blocks + after) * size - N))
    if before or after:
        whole_BCX = padded_BLX.reshape(B, before + blocks + after, size * H * D)
        padded_BLX = torch.cat([whole_BCX[:, shift : shift + blocks] for shift in range(before + 1 + after)], dim=2)
    return padded_BLX.reshape(B * blocks, -1, H, D).transpose(1, 2)


def _allowed(
    lengths_B: Tensor | None,
    length: int,
    blocks: int,
    size: int,
    before: int,
    after: int,
    reach: int | None,
    device: torch.device,
) -> Tensor:
    """(B or 1, C, S, W·S) bool; each token at least itself."""
    starts_C = torch.arange(blocks, device=device) * size
    queries_CS = starts_C[:, None] + torch.arange(size, device=device)
    keys_CK = (starts_C - before * size)[:, None] + torch.arange((before + 1 + after) * size, device=device)
    ends_B = torch.tensor([length], device=device) if lengths_B is None else lengths_B
    there_BCK = (keys_CK >= 0) & (keys_CK < ends_B[:, None, None])
    distance_CSK = (queries_CS[:, :, None] - keys_CK[:, None, :]).abs()
    allowed = there_BCK[:, :, None, :] | (distance_CSK == 0)
    return allowed if reach is None else allowed & (distance_CSK <= reach)
