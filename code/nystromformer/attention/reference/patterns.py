"""Softmax over chosen pairs of tokens: by place, by content, or by sorted blocks.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import torch
from torch import Tensor

from nystromformer.attention.reference.rows import per_row


def longformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    window: int,
    num_first: int,
    marked_BN: Tensor | None = None,
) -> Tensor:
    """Beltagy et al. 2020, section 3.1, with the N x N weights written out.

    Args:
        num_first: valid tokens at the beginning that are global.
        marked_BN: others.
    """
    everywhere = torch.arange(q.shape[2]).expand(q.shape[0], -1)
    marks = everywhere.new_zeros(everywhere.shape) if marked_BN is None else marked_BN.long()

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, row: Tensor) -> Tensor:
        places = torch.arange(len(qs))
        is_global = (places < num_first) | row.bool()
        distance = (places[:, None] - places).abs()
        is_seen = (distance <= window // 2) | is_global | is_global[:, None]
        scores = qs @ ks.T / qs.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~is_seen, float("-inf")), dim=-1) @ vs

    return per_row(attend, q, k, v, keep_BN, of_tokens=marks)


def bigbird_pattern(
    count: int, salts: list[int], block_size: int, num_window: int, num_first: int, is_global: Tensor | None = None
) -> Tensor:
    """Which tokens each attends to, (n, n) bool, of one head.

    Args:
        count: n.
        salts: one for each random block.
        is_global: further tokens that are global, (n,) bool.
    """
    blocks = -(-count // block_size)
    around = num_window // 2
    seen = torch.zeros(blocks, blocks, dtype=torch.bool)
    for block in range(blocks):
        window = set(range(max(0, block - around), min(blocks, block + around + 1)))
        others = [other for other in range(num_first, blocks) if other not in window]
        chosen: list[int] = []  # Floyd's sampling
        taken = min(len(salts), len(others))
        for turn, salt in enumerate(salts[:taken]):
            last = len(others) - taken + turn
            number = _hash(salt, block) % (last + 1)
            chosen.append(last if number in chosen else number)
        seen[block, sorted(window | {others[each] for each in chosen})] = True
    of_token = torch.arange(count) // block_size
    everywhere = of_token < num_first
    if is_global is not None:
        everywhere = everywhere | is_global
    return seen[of_token][:, of_token] | everywhere | everywhere[:, None]


def _hash(salt: int, block: int) -> int:
    number = (block * 0x9E3779B1 % 2**32) ^ salt
    for _ in range(2):
        number = (number ^ number >> 16) * 0x45D9F3B % 2**32
    return number ^ number >> 16


def reformer_attention(
    q: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    rotations: Tensor,
    chunk_length: int,
    num_buckets: int | None = None,
    across_buckets: bool = False,
) -> Tensor:
    """Kitaev et al. 2020, section 2: softmax over all that a token meets in some round of hashing.

    Args:
        rotations: R of each round, (rounds, D, columns).
        num_buckets: of a round; None: twice a row's chunks.
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n = len(qs)
        chunks = -(-n // chunk_length)
        meets = torch.zeros(n, n, dtype=torch.bool)
        for rotation in rotations.double():
            buckets = hash_buckets(qs.detach(), rotation, chunks, num_buckets)
            order = sorted(range(n), key=lambda token: (buckets[token], token))
            chunk = torch.empty(n, dtype=torch.int64)
            chunk[order] = torch.arange(n) // chunk_length
            near = (chunk == chunk[:, None]) | (chunk == (chunk[:, None] - 1) % chunks)
            same = torch.tensor(buckets) == torch.tensor(buckets)[:, None]
            meets |= near if across_buckets else near & same
        meets.fill_diagonal_(False)
        meets |= torch.diag(~meets.any(1))
        lengths = (qs * qs).sum(1, keepdim=True)
        units = torch.where(lengths > 0, qs / torch.where(lengths > 0, lengths, 1.0).sqrt(), 0.0)
        scores = qs @ units.T / qs.shape[1] ** 0.5
        return torch.softmax(scores.masked_fill(~meets, float("-inf")), dim=-1) @ vs

    return per_row(attend, q, q, v, keep_BN)


def hash_buckets(x: Tensor, rotation: Tensor, chunks: int, num_buckets: int | None) -> list[int]:
    """h(x) = argmax([xR; −xR]) of each of the tokens (n, D); with more than 128 buckets two such hashes in one."""

    def hashed(columns: Tensor) -> Tensor:
        return torch.cat([x @ columns, -x @ columns], dim=1).argmax(1)

    if chunks == 1:
        return [0] * len(x)
    if num_buckets is not None:
        return hashed(rotation[:, : num_buckets // 2]).tolist()
    if chunks <= 64:
        return hashed(rotation[:, :chunks]).tolist()
    half = min(64, next(root for root in range(1, chunks) if 2 * root * root >= chunks))
    return (hashed(rotation[:, :half]) + 2 * half * hashed(rotation[:, 64 : 64 + half])).tolist()


def sinkhorn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    block_size: int,
    iterations: int,
    temperature: float,
) -> Tensor:
    """Tay et al. 2020, with block means in the sorting network's place: softmax over a token's own block and
    the block that is sorted to its place, a mixture of all blocks, place by place.
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n, dim = qs.shape
        blocks = -(-n // block_size)
        missing = qs.new_zeros(blocks * block_size - n, dim)
        queries, keys, values = (torch.cat([x, missing]).reshape(blocks, block_size, dim) for x in (qs, ks, vs))
        there = (torch.arange(blocks * block_size) < n).reshape(blocks, block_size)
        means = (x.sum(1) / there.sum(1, keepdim=True) for x in (queries, keys))
        permutation = sinkhorn_balanced(block_scores(*means) / temperature, iterations)
        some = there.any(0)
        share = (permutation @ there.double() / permutation.sum(1, keepdim=True))[:, None, some]
        keys_beside, values_beside = (torch.einsum("ij,jsd->isd", permutation, x)[:, some] for x in (keys, values))
        own = (queries @ keys.mT / dim**0.5).masked_fill(~there[:, None], float("-inf"))
        beside = queries @ keys_beside.mT / dim**0.5 + torch.log(share)
        weights = torch.softmax(torch.cat([own, beside], dim=2), dim=2)
        return (weights @ torch.cat([values, values_beside], dim=1)).reshape(-1, dim)[:n]

    return per_row(attend, q, k, v, keep_BN)


def block_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """(C, D), (C, D) -> (C, C)."""
    return queries @ keys.T / queries.shape[1] ** 0.5


def sinkhorn_balanced(scores: Tensor, iterations: int) -> Tensor:
    """Their eq. of Sinkhorn balancing: rows, then columns are divided by their sums; (C, C) -> (C, C)."""
    balanced = torch.exp(scores)
    for _ in range(iterations):
        balanced = balanced / balanced.sum(1, keepdim=True)
        balanced = balanced / balanced.sum(0, keepdim=True)
    return balanced
