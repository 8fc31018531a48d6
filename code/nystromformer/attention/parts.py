"""One softmax over keys of three kinds: the blocks around a block of tokens, keys that all of a row's tokens share, and
keys of one block alone.

On a CPU each kind goes through PyTorch's fused kernel by itself, over views of the row instead of copies for each
block. Their results are put together by the logarithms of their sums, and the backward pass of each kind gets the sums
over all. Nothing that grows with both tokens and keys is kept.

Shapes: B batch, H heads, N tokens, S tokens of a block, C blocks of a row, K keys of a block and those around it
((2·around + 1)·S), G shared keys, L keys of a block alone, D head dim, P blocks of a row and the empty ones before it,
J blocks of all rows with the empty ones, Q queries of a block (S).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.grid import Grid
from nystromformer.attention.scores import default_scale, never, written_out
from nystromformer.attention.tracing import is_exporting, is_plain, is_under_autocast, once_differentiable

_PIECE = 1 << 20
"""Scores that are computed at a time, so that what they need stays in a cache."""
_SHARED_QUERIES = 1024
"""Queries that meet shared keys at a time."""
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Keys(NamedTuple):
    """Keys beside those of the blocks around."""

    k: Tensor
    """(B, H, G, D) where all blocks of a row share them, (B, H, C, L, D) where each block has its own."""
    v: Tensor
    bias: Tensor
    """(B, H or 1, C, G) or (B, H or 1, C, L): added to the scores; `never` for keys that are not there."""


def attend_to_parts(
    q_BHND: Tensor,
    k_BHND: Tensor,
    v_BHND: Tensor,
    around_bias: Tensor,
    size: int,
    around: int,
    shared: Keys | None = None,
    own: Keys | None = None,
) -> Tensor:
    """softmax over the blocks around a token's own, shared keys, and its block's own ones.

    Args:
        around_bias: (B or 1, H or 1, C, S or 1, K), added to the scores of the blocks around; no gradient goes into it.
        size: S.
        around: blocks on either side.

    Returns:
        (B, H, N, D).
    """
    if q_BHND.device.type == "cpu" and not is_plain():
        if torch.is_autocast_enabled("cpu"):  # as PyTorch does for its own attention
            dtype = torch.get_autocast_dtype("cpu")
            q_BHND, k_BHND, v_BHND = (x.to(dtype) for x in (q_BHND, k_BHND, v_BHND))
            shared, own = (keys and Keys(keys.k.to(dtype), keys.v.to(dtype), keys.bias) for keys in (shared, own))
        rest = [x for keys in (shared, own) for x in (keys or (None, None, None))]
        out: Tensor = _Parts.apply(q_BHND, k_BHND, v_BHND, around_bias, size, around, *rest)
        return out
    return _by_blocks(q_BHND, k_BHND, v_BHND, around_bias, size, around, shared, own)


def _by_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    around_bias: Tensor,
    size: int,
    around: int,
    shared: Keys | None,
    own: Keys | None,
) -> Tensor:
    """The same with all keys of a block beside each other, for graphs and GPUs."""
    B, H, N, _ = q.shape
    grid = Grid(q, None, size)
    others = [part for part in (shared, own) if part is not None]
    bias = torch.cat([x.expand(B, -1, -1, -1, -1) for x in _alike(around_bias, *(x.bias for x in others))], 4)
    dtype = torch.get_autocast_dtype(q.device.type) if is_under_autocast(q) else q.dtype
    # Not -inf in half precision: a softmax over nothing is no number, and neither is its gradient.
    bias_BHCQK = bias.clamp(min=never(dtype)).to(dtype)
    keys, values = [part.k for part in others], [part.v for part in others]
    if is_exporting():
        k, v = (
            torch.cat([grid.of(x, around), *(_of_each_block(y, grid.num_blocks) for y in parts)], 3)
            for x, parts in ((k, keys), (v, values))
        )
        return grid.flat(written_out(grid.of(q), k, v, bias_BHCQK))
    # Of four sizes the fused kernels take it.
    blocks = grid.num_blocks
    q, k, v = _cut(q, blocks, size, 0, []), _cut(k, blocks, size, around, keys), _cut(v, blocks, size, around, values)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias_BHCQK.transpose(1, 2).flatten(0, 1))
    return out.transpose(1, 2).reshape(B, blocks * size, H, -1)[:, :N].transpose(1, 2)


def _alike(around_bias: Tensor, *others: Tensor) -> list[Tensor]:
    """Biases with as many heads and queries."""
    queries, heads = around_bias.shape[3], max(x.shape[1] for x in (around_bias, *others))
    wide = [x[:, :, :, None].expand(-1, -1, -1, queries, -1) for x in others]
    return [x.expand(-1, heads, -1, -1, -1) for x in (around_bias, *wide)]


def _of_each_block(x: Tensor, blocks: int) -> Tensor:
    """(B, H, C, K, D)"""
    return x[:, :, None].expand(-1, -1, blocks, -1, -1) if x.ndim == 4 else x


def _cut(x_BHND: Tensor, blocks: int, size: int, around: int, others: Sequence[Tensor]) -> Tensor:
    """(B·C, H, K, D): each block with those around it, zeros beyond the first and the last token, and other keys.

    Padding and concatenation are of three sizes: of more, what PyTorch gives differs in its layout from what it expects
    when it compiles.
    """
    B, H, N, D = x_BHND.shape
    padded_BLX = F.pad(x_BHND.transpose(1, 2).flatten(2), (0, 0, around * size, (blocks + around) * size - N))
    whole_BCX = padded_BLX.reshape(B, 2 * around + blocks, size * H * D)
    parts = [whole_BCX[:, shift : shift + blocks] for shift in range(2 * around + 1)]
    for x in others:
        if x.ndim == 4:
            parts.append(x.transpose(1, 2).flatten(1)[:, None].expand(-1, blocks, -1))
        else:
            parts.append(x.permute(0, 2, 3, 1, 4).flatten(2))
    cut_BCX = torch.cat(parts, dim=2) if len(parts) > 1 else whole_BCX
    return cut_BCX.reshape(B * blocks, -1, H, D).transpose(1, 2)


class _Rows(NamedTuple):
    """Where the blocks of rows stand that lie one behind the other, each with `around` empty blocks before it, and as
    many behind the last: so that the blocks around any block are one piece of memory."""

    batch: int
    heads: int
    length: int
    dim: int
    size: int
    around: int

    @property
    def blocks(self) -> int:
        """C"""
        return -(-self.length // self.size)

    @property
    def period(self) -> int:
        """P"""
        return self.blocks + self.around

    def laid(self, x_BHND: Tensor) -> Tensor:
        """(J + around, S, H, D), with zeros where there is no token. J is P for each row."""
        B, H, _, D = x_BHND.shape
        laid_JSHD = x_BHND.new_empty(B * self.period + self.around, self.size, H, D)
        tokens_BLHD = laid_JSHD[: B * self.period].view(B, -1, H, D)
        start = self.around * self.size
        tokens_BLHD[:, :start] = 0
        tokens_BLHD[:, start : start + self.length] = x_BHND.transpose(1, 2)
        tokens_BLHD[:, start + self.length :] = 0
        laid_JSHD[B * self.period :] = 0
        return laid_JSHD

    def taken(self, x_JSHD: Tensor) -> Tensor:
        """(B, H, N, D), the reverse, a view."""
        rows = x_JSHD[: self.batch * self.period].view(self.batch, self.period * self.size, self.heads, self.dim)
        start = self.around * self.size
        return rows[:, start : start + self.length].transpose(1, 2)

    def biases(self, bias: Tensor) -> Tensor:
        """(B or 1, H or 1, C, …) -> (J, H or 1, …); zero for empty blocks."""
        x = bias.expand(self.batch, -1, -1, *bias.shape[3:]).transpose(1, 2)
        x = F.pad(x, (*(0, 0) * (x.ndim - 2), self.around, 0))
        return x.flatten(0, 1)

    def windows(self, x_JSHD: Tensor, piece: slice) -> Tensor:
        """(J, H, K, D): the blocks around each of a piece, a view. The window of block j begins `around` before it."""
        start, stop = piece.start, piece.stop
        width, step = (2 * self.around + 1) * self.size, self.size * self.heads * self.dim
        offset = x_JSHD.storage_offset() + (start - self.around) * step
        shape = (stop - start, self.heads, width, self.dim)
        return x_JSHD.as_strided(shape, (step, self.dim, self.heads * self.dim, 1), offset)

    def pieces(self, keys: int) -> Iterator[slice]:
        """Of all blocks that have as many around them; the first empty ones have not."""
        last = self.batch * self.period
        step = max(1, _PIECE // (self.heads * self.size * keys))
        for start in range(self.around, last, step):
            yield slice(start, min(start + step, last))

    def row_pieces(self) -> Iterator[tuple[int, slice, slice]]:
        """Pieces of one row each: the row, the blocks among its own, and among all."""
        step = max(1, _SHARED_QUERIES // self.size)
        for row in range(self.batch):
            first = row * self.period + self.around
            for start in range(0, self.blocks, step):
                stop = min(start + step, self.blocks)
                yield row, slice(start, stop), slice(first + start, first + stop)


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, size: int, around: int, *rest: Any) -> Tensor:
        B, H, N, D = q.shape
        rows = _Rows(B, H, N, D, size, around)
        q_JSHD, k_JSHD, v_JSHD = (rows.laid(x) for x in (q, k, v))
        shared, own = (None if part[0] is None else Keys(*part) for part in (rest[:3], rest[3:]))
        if own is not None:
            own = Keys(*(rows.biases(x) for x in own))
        # 16 bits would round the logarithm of a group's size.
        bias = rows.biases(bias.to(torch.promote_types(q.dtype, torch.float32)))
        # What stands at the first empty blocks nobody reads.
        out_JSHD, sums_JSH = torch.empty_like(q_JSHD), bias.new_empty(q_JSHD.shape[:3])
        for piece in rows.pieces(bias.shape[-1]):
            keys = (rows.windows(k_JSHD, piece), rows.windows(v_JSHD, piece), bias[piece])
            out_JSHD[piece], sums_JSH[piece] = attend_by_flash(q_JSHD[piece], *keys)
            if own is not None:
                more = attend_by_flash(q_JSHD[piece], own.k[piece], own.v[piece], own.bias[piece, :, None])
                _add(out_JSHD[piece], sums_JSH[piece], *more)
        if shared is not None:
            for row, of_row, of_all in rows.row_pieces():
                keys = _shared_keys(shared, row, of_row, size)
                more = attend_by_flash(q_JSHD[of_all].view(1, -1, H, D), *keys)
                _add(out_JSHD[of_all].view(1, -1, H, D), sums_JSH[of_all].view(1, -1, H), *more)
        ctx.rows, ctx.given = rows, (shared is not None, own is not None)
        kept = (q_JSHD, k_JSHD, v_JSHD, bias, out_JSHD, sums_JSH, *(shared or ()), *(own or ()))
        ctx.save_for_backward(*kept)
        return rows.taken(out_JSHD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHND: Tensor) -> tuple[Any, ...]:
        rows, (has_shared, has_own) = ctx.rows, ctx.given
        q_JSHD, k_JSHD, v_JSHD, bias, out_JSHD, sums_JSH, *rest = ctx.saved_tensors
        shared = Keys(*rest[:3]) if has_shared else None
        own = Keys(*rest[-3:]) if has_own else None
        grad_JSHD = rows.laid(grad_BHND)
        of_q, of_k, of_v = torch.empty_like(q_JSHD), torch.zeros_like(k_JSHD), torch.zeros_like(v_JSHD)
        of_own = None if own is None else (torch.empty_like(own.k), torch.empty_like(own.v))
        for piece in rows.pieces(bias.shape[-1]):
            ends = (out_JSHD[piece], sums_JSH[piece])
            keys = (rows.windows(k_JSHD, piece), rows.windows(v_JSHD, piece), bias[piece])
            of_q[piece], *of_windows = gradients_by_flash(grad_JSHD[piece], q_JSHD[piece], *keys, *ends)
            for of_all, of_JHKD in zip((of_k, of_v), of_windows, strict=True):
                of_JWSHD = of_JHKD.transpose(1, 2).unflatten(1, (-1, rows.size))
                for shift in range(2 * rows.around + 1):
                    first = piece.start - rows.around + shift
                    of_all[first : first + piece.stop - piece.start] += of_JWSHD[:, shift]
            if own is not None and of_own is not None:
                keys = (own.k[piece], own.v[piece], own.bias[piece, :, None])
                more, of_own[0][piece], of_own[1][piece] = gradients_by_flash(
                    grad_JSHD[piece], q_JSHD[piece], *keys, *ends
                )
                of_q[piece] += more
        of_shared = None if shared is None else (torch.zeros_like(shared.k), torch.zeros_like(shared.v))
        if shared is not None and of_shared is not None:
            shape = (1, -1, rows.heads, rows.dim)
            for row, of_row, of_all in rows.row_pieces():
                keys = _shared_keys(shared, row, of_row, rows.size)
                ends = (out_JSHD[of_all].view(shape), sums_JSH[of_all].view(shape[:3]))
                more, *of_keys = gradients_by_flash(
                    grad_JSHD[of_all].view(shape), q_JSHD[of_all].view(shape), *keys, *ends
                )
                of_q[of_all] += more.view(of_q[of_all].shape)
                for of_part, part in zip(of_shared, of_keys, strict=True):
                    of_part[row] += part[0]
        gradients = [rows.taken(x) for x in (of_q, of_k, of_v)]
        of_blocks = (None, None) if of_own is None else tuple(_of_blocks(x, rows) for x in of_own)
        return (*gradients, None, None, None, *(of_shared or (None, None)), None, *of_blocks, None)


def attend_by_flash(q_JSHD: Tensor, k_JHKD: Tensor, v_JHKD: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's fused attention on a CPU: (J, S, H, D), and the logarithms of the sums, (J, S, H)."""
    scale = default_scale(q_JSHD.shape[3])
    out, sums = _flash(q_JSHD.transpose(1, 2), k_JHKD, v_JHKD, 0.0, False, attn_mask=bias, scale=scale)
    return out.transpose(1, 2), sums.transpose(1, 2)


def gradients_by_flash(
    grad_JSHD: Tensor, q_JSHD: Tensor, k_JHKD: Tensor, v_JHKD: Tensor, bias: Tensor, out_JSHD: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (J, S, H, D) of the queries and (J, H, K, D) of keys and values.

    With the output and the sums over all kinds of keys, the weights are those of the one softmax.
    """
    x = (grad_JSHD.transpose(1, 2), q_JSHD.transpose(1, 2), k_JHKD, v_JHKD, out_JSHD.transpose(1, 2))
    scale = default_scale(q_JSHD.shape[3])
    of_q, of_k, of_v = _flash_backward(*x, sums.transpose(1, 2), 0.0, False, attn_mask=bias, scale=scale)
    return of_q.transpose(1, 2), of_k, of_v


def _add(out: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> None:
    """Put the results of two kinds of keys together, in the first one's place."""
    both = torch.logaddexp(sums, more_sums)
    share, more_share = ((x - both).exp()[..., None] for x in (sums, more_sums))
    if out.dtype == both.dtype:
        out.mul_(share).addcmul_(more, more_share)
    else:
        out.copy_(out * share + more * more_share)
    sums.copy_(both)


def _shared_keys(shared: Keys, row: int, of_row: slice, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (1, H, G, D) of a row, and the biases (1, H, Q, G) of the queries of a piece."""
    bias_HQG = shared.bias[row, :, of_row].repeat_interleave(size, 1)
    return shared.k[row : row + 1], shared.v[row : row + 1], bias_HQG[None]


def _of_blocks(x_JHLD: Tensor, rows: _Rows) -> Tensor:
    """(B, H, C, L, D): without the empty blocks."""
    return x_JHLD.unflatten(0, (rows.batch, rows.period))[:, rows.around :].transpose(1, 2)
