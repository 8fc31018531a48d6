"""Softmax over tiles: groups of queries, each with one block of keys, and one more key for each query.

A query may be in several tiles; what it gets there is put together by the logarithms of the sums.

Shapes: B batch, H heads, N tokens, S queries of a tile and tokens of a block, C blocks, T tiles, X rows of all heads
(B·H), D head dim.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.grid import Grid
from nystromformer.attention.parts import attend_by_flash, gradients_by_flash
from nystromformer.attention.scores import default_scale, finite_bias, never
from nystromformer.attention.tracing import is_plain, once_differentiable

_PIECE = 1 << 22
"""Scores that are computed at a time, of whole heads."""


class Tiles(NamedTuple):
    """Which queries meet which blocks of keys."""

    queries_BHTS: Tensor
    """int64: the places of the queries; N where there is none."""
    blocks_BHT: Tensor
    """int64: the block of keys."""


class Coarse(NamedTuple):
    """One more key for each query, which stands for many: what it gives, and the logarithm of its weight."""

    values_BHND: Tensor
    sums_BHN: Tensor


def attend_to_tiles(q: Tensor, k: Tensor, v: Tensor, grid: Grid, tiles: Tiles, coarse: Coarse) -> Tensor:
    """softmax over the tokens of all blocks that a query meets, and over its coarse key.

    Args:
        q, k, v: (B, H, N, D).
        grid: the blocks of the keys, and how many tokens count.

    Returns:
        (B, H, N, D); a query that does not count gets something finite.
    """
    bias_BCS = finite_bias(grid.there(), torch.promote_types(q.dtype, torch.float32)).expand(q.shape[0], -1, -1)
    if q.device.type == "cpu" and not is_plain():
        out: Tensor = _Tiles.apply(q, k, v, bias_BCS, *tiles, grid.size, *coarse)
        return out
    return _all_at_once(q, k, v, grid, bias_BCS, tiles, coarse)


def _all_at_once(q: Tensor, k: Tensor, v: Tensor, grid: Grid, bias_BCS: Tensor, tiles: Tiles, coarse: Coarse) -> Tensor:
    """For graphs and GPUs."""
    B, H, N, D = q.shape
    rows = torch.arange(B, device=q.device)[:, None, None]
    heads = torch.arange(H, device=q.device)[:, None]
    index_BHTS, blocks_BHT = tiles.queries_BHTS, tiles.blocks_BHT
    q_BHTSD = F.pad(q, (0, 0, 0, 1))[rows[..., None], heads[..., None], index_BHTS]
    k_BHTSD, v_BHTSD = (grid.of(x)[rows, heads, blocks_BHT] for x in (k, v))
    scores = (q_BHTSD @ k_BHTSD.mT).to(bias_BCS.dtype) * default_scale(D) + bias_BCS[rows, blocks_BHT][..., None, :]
    sums_BHTS = torch.logsumexp(scores, -1)
    out_BHTSD = torch.softmax(scores, -1).to(v.dtype) @ v_BHTSD
    index_BHX, sums_BHX = index_BHTS.flatten(2), sums_BHTS.flatten(2)
    most_BHL = F.pad(coarse.sums_BHN.detach(), (0, 1), value=never(sums_BHX.dtype))
    with torch.no_grad():
        most_BHL = most_BHL.scatter_reduce(2, index_BHX, sums_BHX, "amax")
    shares_BHX = (sums_BHX - most_BHL.gather(2, index_BHX)).exp()
    total_BHL = torch.zeros_like(most_BHL).scatter_add(2, index_BHX, shares_BHX)
    parts_BHXD = out_BHTSD.flatten(2, 3) * shares_BHX[..., None]
    mixed_BHLD = parts_BHXD.new_zeros(B, H, N + 1, D)
    mixed_BHLD = mixed_BHLD.scatter_add(2, index_BHX[..., None].expand_as(parts_BHXD), parts_BHXD)
    share_BHN = (coarse.sums_BHN - most_BHL[..., :N]).exp()
    total_BHN = total_BHL[..., :N] + share_BHN
    mixed_BHND = mixed_BHLD[:, :, :N] + share_BHN[..., None] * coarse.values_BHND
    # Padding meets nothing.
    return (mixed_BHND / total_BHN.clamp(min=torch.finfo(total_BHN.dtype).tiny)[..., None]).to(q.dtype)


class _Tiles(torch.autograd.Function):
    """By pieces of whole heads, of which no score is kept: the backward pass computes them again."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias_BCS: Tensor,
        index_BHTS: Tensor,
        blocks_BHT: Tensor,
        size: int,
        values: Tensor,
        sums: Tensor,
    ) -> Tensor:
        B, H, N, D = q.shape
        C = bias_BCS.shape[1]
        # One place more for queries that are none.
        q_XLD = F.pad(q.reshape(B * H, N, D), (0, 0, 0, 1))
        k_XCSD, v_XCSD = (
            F.pad(x.reshape(B * H, N, D), (0, 0, 0, C * size - N)).unflatten(1, (C, size)) for x in (k, v)
        )
        bias_XCS = bias_BCS[:, None].expand(-1, H, -1, -1).flatten(0, 1)
        index_XTS, blocks_XT = index_BHTS.expand(B, H, -1, -1).flatten(0, 1), blocks_BHT.expand(B, H, -1).flatten(0, 1)
        out_XLD = torch.zeros_like(q_XLD)
        sums_XL = bias_XCS.new_full((B * H, N + 1), never(bias_XCS.dtype))
        sums_XL[:, :N] = sums.flatten(0, 1)
        out_XLD[:, :N] = values.flatten(0, 1)
        for rows in _pieces(index_XTS):
            index, blocks = _flat(index_XTS[rows], N + 1), _flat(blocks_XT[rows], C)
            own_k, own_v = (_blocks(x[rows], blocks) for x in (k_XCSD, v_XCSD))
            bias = bias_XCS[rows].flatten(0, 1)[blocks][:, None, None]
            part, part_sums = attend_by_flash(_tiles(q_XLD[rows], index), own_k, own_v, bias)
            _merge(out_XLD[rows].flatten(0, 1), sums_XL[rows].flatten(), index.flatten(), part, part_sums.flatten())
        ctx.save_for_backward(q_XLD, k_XCSD, v_XCSD, bias_XCS, index_XTS, blocks_XT, out_XLD, sums_XL, values, sums)
        ctx.shape = B, H, N, D
        return out_XLD[:, :N].unflatten(0, (B, H))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHND: Tensor) -> tuple[Any, ...]:
        q_XLD, k_XCSD, v_XCSD, bias_XCS, index_XTS, blocks_XT, out_XLD, sums_XL, values, sums = ctx.saved_tensors
        B, H, N, D = ctx.shape
        C = bias_XCS.shape[1]
        grad_XLD = F.pad(grad_BHND.reshape(B * H, N, D), (0, 0, 0, 1))
        # Contiguous, whatever those are: pieces are added into flattened views.
        of_q, of_k, of_v = (x.new_zeros(x.shape) for x in (q_XLD, k_XCSD, v_XCSD))
        for rows in _pieces(index_XTS):
            index, blocks = _flat(index_XTS[rows], N + 1), _flat(blocks_XT[rows], C)
            own_grad, own_q, own_out = (_tiles(x[rows], index) for x in (grad_XLD, q_XLD, out_XLD))
            own_k, own_v = (_blocks(x[rows], blocks) for x in (k_XCSD, v_XCSD))
            bias = bias_XCS[rows].flatten(0, 1)[blocks][:, None, None]
            own_sums = sums_XL[rows].flatten()[index][..., None]
            parts = gradients_by_flash(own_grad, own_q, own_k, own_v, bias, own_out, own_sums)
            of_q[rows].flatten(0, 1).index_add_(0, index.flatten(), parts[0].reshape(-1, D))
            for of_all, part in zip((of_k, of_v), parts[1:], strict=True):
                of_all[rows].flatten(0, 1).flatten(1).index_add_(0, blocks, part.reshape(len(blocks), -1))
        share_BHN1 = (sums - sums_XL[:, :N].unflatten(0, (B, H))).exp()[..., None]
        of_values = share_BHN1 * grad_BHND
        of_sums = (of_values * (values - out_XLD[:, :N].unflatten(0, (B, H)))).sum(-1)
        of_values = of_values.to(values.dtype)
        gradients = (of_q[:, :N], *(x.flatten(1, 2)[:, :N] for x in (of_k, of_v)))
        return (*(x.unflatten(0, (B, H)) for x in gradients), None, None, None, None, of_values, of_sums)


def _pieces(index_XTS: Tensor) -> Iterator[slice]:
    rows, tiles, size = index_XTS.shape
    step = max(1, _PIECE // (tiles * size * size))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _flat(places_XT: Tensor, count: int) -> Tensor:
    """Places among those of all rows behind each other; the first two dimensions are one."""
    offsets_X = torch.arange(len(places_XT), device=places_XT.device) * count
    return (places_XT + offsets_X.view(-1, *(1,) * (places_XT.ndim - 1))).flatten(0, 1)


def _tiles(x_XLD: Tensor, index_TS: Tensor) -> Tensor:
    """(T, S, 1, D)"""
    taken = x_XLD.flatten(0, 1).index_select(0, index_TS.flatten())
    return taken.view(*index_TS.shape, 1, x_XLD.shape[2])


def _blocks(x_XCSD: Tensor, blocks_T: Tensor) -> Tensor:
    """(T, 1, S, D)"""
    size, dim = x_XCSD.shape[2:]
    return x_XCSD.flatten(2).flatten(0, 1).index_select(0, blocks_T).view(-1, 1, size, dim)


def _merge(out_LD: Tensor, sums_L: Tensor, index_E: Tensor, part: Tensor, part_sums_E: Tensor) -> None:
    """Put what queries get in tiles to what they have, in its place."""
    part_ED = part.reshape(len(index_E), -1).to(sums_L.dtype)
    most_L = sums_L.scatter_reduce(0, index_E, part_sums_E, "amax")
    share_L, shares_E = (sums_L - most_L).exp(), (part_sums_E - most_L[index_E]).exp()
    total_L = share_L.index_add(0, index_E, shares_E)
    mixed_LD = (out_LD * share_L[:, None]).to(sums_L.dtype).index_add_(0, index_E, part_ED * shares_E[:, None])
    out_LD.copy_(mixed_LD / total_L[:, None])
    sums_L.copy_(most_L + total_L.log())
