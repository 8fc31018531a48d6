"""Tokens sorted by the buckets that locality-sensitive hashing puts them into, in each round of it.

Shapes: B batch, H heads, N tokens, D head dim, R rounds, S tokens of a chunk, C chunks, X = B·H rows of a head,
P = (C + 1)·S places of such a row (C·S where C = 1), M = B·N·H vectors, K columns of a rotation.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MOST_COLUMNS = 64
"""Of a rotation: up to twice as many buckets are told apart by one, more by the product of two."""
_ROTATED = {"cpu": 2**17}
_ROTATED_ELSEWHERE = 2**26
"""Numbers of xR that are held at a time: columns grow with the length, and memory shall be linear."""


class Sorted(NamedTuple):
    """What stands where in each round, by bucket and then by position, what does not count last.

    A row's places begin with a copy of its own last chunk, so that the chunk before each of its own stands before it.
    """

    vectors_RP: Tensor
    """(R, X·P): the vector, of M, that stands at each place; any one at places behind the row's last token."""
    codes_RP: Tensor
    """(R, X·P) int32: the bucket at each place, -1 where no token stands that counts."""
    places_RM: Tensor
    """(R, M): the place of each vector, copies left aside."""
    here_RM: Tensor
    """(R, M) int32: bucket and chunk of each vector, in one number."""
    next_RM: Tensor
    """(R, M) int32: bucket and the chunk that follows, in one number."""
    copied_X: Tensor
    """The chunk, of X·P/S, that the first of a row's is a copy of."""


def sort_by_buckets(buckets_RBNH: Tensor, lengths_B: Tensor, keep_BN: Tensor | None, size: int, across: bool) -> Sorted:
    """Sort each round's tokens by their buckets into chunks.

    Args:
        buckets_RBNH: int64, below 2³⁰ / (C + 1).
        lengths_B: tokens of each row that count.
        keep_BN: which; None: all.
        size: S.
        across: whether the bucket decides on the order alone: then all codes are one.
    """
    R, B, N, H = buckets_RBNH.shape
    device = buckets_RBNH.device
    chunks, before = chunk_count(N, size)
    own_B = chunks_of(lengths_B, size)
    buckets_RBHN = buckets_RBNH.transpose(2, 3)
    # Each number once: no sort needs to be stable, and the token is what remains of it.
    keys_RBHN = buckets_RBHN * N + torch.arange(N, device=device)
    if keep_BN is not None:
        keys_RBHN = torch.where(keep_BN[:, None], keys_RBHN, keys_RBHN + (2**40 // N) * N)
    tokens_RBHN = keys_RBHN.sort(-1).values % N
    ranks_RBHN = torch.empty_like(tokens_RBHN).scatter_(
        -1, tokens_RBHN, torch.arange(N, device=device).expand_as(tokens_RBHN)
    )
    ranks_BP = torch.arange(chunks * size, device=device).expand(B, -1)
    there_BP = ranks_BP < lengths_B[:, None]
    if before:
        copied_BS = (own_B - 1)[:, None] * size + torch.arange(size, device=device)
        ranks_BP = torch.cat([copied_BS, ranks_BP], 1)
        there_BP = torch.cat([(copied_BS < lengths_B[:, None]) & (own_B > 1)[:, None], there_BP], 1)
    index_RBHP = ranks_BP.clamp(max=N - 1)[:, None].expand(R, -1, H, -1)
    at_RBHP = tokens_RBHN.gather(-1, index_RBHP)
    codes_RBHN = torch.zeros_like(buckets_RBHN) if across else buckets_RBHN
    codes_RBHP = torch.where(there_BP[:, None], codes_RBHN.gather(-1, at_RBHP), -1)
    rows_B11 = torch.arange(B, device=device)[:, None, None]
    heads_H1 = torch.arange(H, device=device)[:, None]
    vectors_RBHP = (rows_B11 * N + at_RBHP) * H + heads_H1
    row_of_BH1 = rows_B11 * H + heads_H1
    places_RBHN = row_of_BH1 * ((chunks + before) * size) + before * size + ranks_RBHN
    chunk_RBHN = ranks_RBHN // size
    next_RBHN = (chunk_RBHN + 1) % own_B[:, None, None]
    codes_RBHN = codes_RBHN * (chunks + 1)
    return Sorted(
        vectors_RBHP.flatten(1),
        codes_RBHP.flatten(1).int(),
        places_RBHN.transpose(2, 3).flatten(1),
        (codes_RBHN + chunk_RBHN).transpose(2, 3).flatten(1).int(),
        (codes_RBHN + next_RBHN).transpose(2, 3).flatten(1).int(),
        (row_of_BH1[..., 0] * (chunks + before) + own_B[:, None] - 1 + before).flatten(),
    )


def chunk_count(length: int, size: int) -> tuple[int, int]:
    """C, and how many copies stand before a row's own chunks: one, or none where there is but one chunk."""
    chunks = (length + size - 1) // size
    return chunks, int(chunks > 1)


def chunks_of(lengths_B: Tensor, size: int) -> Tensor:
    """Chunks that each row's own tokens fill, at least one."""
    return ((lengths_B + size - 1) // size).clamp(min=1)


def buckets_of(q_BNHD: Tensor, rotations_RDK: Tensor, own_B: Tensor | None, chunks: int) -> Tensor:
    """argmax([xR; −xR]) (section 2, "Locality sensitive hashing") in each round, (R, B, N, H) int64.

    A row of c chunks has 2c buckets, told apart by the first c columns of R; where these are too many, by two hashes of
    ⌈√(c/2)⌉ columns each. A row of one chunk has one bucket.

    Args:
        own_B: c; None: `chunks` for all.
        chunks: the most that a row may have.
    """
    if chunks == 1:
        return torch.zeros((len(rotations_RDK), *q_BNHD.shape[:3]), dtype=torch.int64, device=q_BNHD.device)
    few, rounds = MOST_COLUMNS, []
    if own_B is None:
        first: int | Tensor = chunks if chunks <= few else _root(chunks)
        second: int | Tensor = 0 if chunks <= few else _root(chunks)
    else:
        roots_B = (own_B / 2).double().sqrt().ceil().long().clamp(max=few)
        first = torch.where(own_B <= few, own_B, roots_B)
        second = torch.where(own_B <= few, 0, roots_B)
    widest = min(chunks, few) if isinstance(first, Tensor) else first
    for rotation_DK in rotations_RDK.to(q_BNHD.dtype):
        buckets_BNH = _hash(q_BNHD, rotation_DK[:, :widest], first)
        if chunks > few:
            more = _hash(q_BNHD, rotation_DK[:, few : few + _root(chunks)], second)
            size = first[:, None, None] if isinstance(first, Tensor) else first
            buckets_BNH = buckets_BNH + 2 * size * more
        rounds.append(buckets_BNH)
    buckets_RBNH = torch.stack(rounds)
    return buckets_RBNH if own_B is None else buckets_RBNH * (own_B > 1)[:, None, None]


def _hash(x_BNHD: Tensor, rotation_DK: Tensor, own: int | Tensor) -> Tensor:
    """argmax([xR; −xR]) over the first `own` columns of R; 0 where there are none."""
    B, _, H, _ = x_BNHD.shape
    if torch.compiler.is_compiling():
        return _hash_at_once(x_BNHD, rotation_DK, own)
    tokens = max(1, _ROTATED.get(x_BNHD.device.type, _ROTATED_ELSEWHERE) // (B * H * max(1, rotation_DK.shape[1])))
    parts = torch.split(x_BNHD, tokens, 1)
    return torch.cat([_hash_at_once(part, rotation_DK, own) for part in parts], 1)


def _hash_at_once(x_BNHD: Tensor, rotation_DK: Tensor, own: int | Tensor) -> Tensor:
    # In one product: for a view with gaps there would be one, and a copy of R, for each token.
    rotated_BNHK = (x_BNHD.reshape(-1, x_BNHD.shape[3]) @ rotation_DK).unflatten(0, x_BNHD.shape[:3])
    sizes_BNHK = rotated_BNHK.abs()
    if isinstance(own, Tensor):
        beyond_BK = torch.arange(rotation_DK.shape[1], device=x_BNHD.device) >= own[:, None]
        sizes_BNHK = sizes_BNHK.masked_fill_(beyond_BK[:, None, None], -1.0)
        own = own[:, None, None]
    columns_BNH = sizes_BNHK.argmax(-1)
    is_negative_BNH = rotated_BNHK.gather(-1, columns_BNH[..., None])[..., 0] < 0
    # Where there are no columns, the number of them, 0, is added.
    return columns_BNH + own * is_negative_BNH


def _root(columns: int) -> int:
    return min(MOST_COLUMNS, math.ceil(math.sqrt(columns / 2)))
