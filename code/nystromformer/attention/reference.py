"""Slow, plain oracles in float64, written from the papers' equations; nothing here is shared with the modules.

Differentiable, so that gradients have an oracle too. Rows and heads are computed one by one, of valid tokens alone.

Shapes: B batch, H heads, N tokens, n valid tokens of a row, M landmarks, D head dim, K taps.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def softmax_matrix(q: Tensor, k: Tensor) -> Tensor:
    """S of eq. 2: (n, D), (m, D) -> (n, m), rows summing to one."""
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """Eq. 2 among the valid tokens of each row: (B, H, N, D) -> (B, H, N, D), zero elsewhere."""
    return per_row(lambda qs, ks, vs: softmax_matrix(qs, ks) @ vs, q, k, v, keep_BN)


def pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, allowed: Callable[[int, int], Tensor]
) -> Tensor:
    """Eq. 2 over some of the valid tokens of each row.

    Args:
        allowed: from the number of valid tokens n and the head, which tokens each attends to: (n, n) bool.
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        return _softmax_over(qs, ks, vs, allowed(len(qs), head))

    return per_row(attend, q, k, v, keep_BN, with_heads=True)


def _softmax_over(qs: Tensor, ks: Tensor, vs: Tensor, is_seen: Tensor) -> Tensor:
    scores = qs @ ks.T / qs.shape[-1] ** 0.5
    return torch.softmax(scores.masked_fill(~is_seen, float("-inf")), dim=-1) @ vs


def depthwise_convolution(v: Tensor, weight_H1K1: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """The skip of Figure 4: out[n] = Σ_k w[h, k]·v[n + k − K//2], masked tokens as zeros; zero at masked positions."""
    v, weight = v.double(), weight_H1K1.double()
    N, K = v.shape[2], weight.shape[2]
    keep = torch.ones(v.shape[0], N, dtype=torch.bool) if keep_BN is None else keep_BN
    keep_B1N1 = keep[:, None, :, None]
    v = torch.where(keep_B1N1, v, 0.0)
    out = torch.zeros_like(v)
    for tap in range(K):
        shift = tap - K // 2
        low, high = max(0, -shift), min(N, N - shift)
        if low < high:
            shifted = torch.zeros_like(v)
            shifted[:, :, low:high] = v[:, :, low + shift : high + shift]
            out = out + weight[None, :, 0, tap, :, None] * shifted
    return torch.where(keep_B1N1, out, 0.0)


def per_row(attend, q, k, v, keep_BN, with_heads=False, of_tokens=None):  # type: ignore[no-untyped-def]
    q, k, v = q.double(), k.double(), v.double()
    rows = []
    for b in range(q.shape[0]):
        valid = torch.ones(q.shape[2], dtype=torch.bool) if keep_BN is None else keep_BN[b]
        heads = []
        for h in range(q.shape[1]):
            out = torch.zeros_like(q[b, h])
            if valid.any():
                own = (q[b, h][valid], k[b, h][valid], v[b, h][valid], *([h] if with_heads else []))
                own += () if of_tokens is None else (of_tokens[b][valid],)
                out = out.index_put((valid.nonzero()[:, 0],), attend(*own))
            heads.append(out)
        rows.append(torch.stack(heads))
    return torch.stack(rows)


def pseudo_inverse_steps(a: Tensor, iterations: int) -> Tensor:
    """Eq. 14 from Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞): (m, m) -> (m, m)."""
    eye = torch.eye(len(a), dtype=a.dtype)
    z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def segment_bounds(n: int, num_landmarks: int) -> list[tuple[int, int]]:
    """Near-equal segments of n ≥ M tokens: segment j holds the tokens r with ⌊r·M/n⌋ = j."""
    members = [[r for r in range(n) if r * num_landmarks // n == j] for j in range(num_landmarks)]
    return [(group[0], group[-1] + 1) for group in members]


def segment_means(x: Tensor, num_landmarks: int) -> Tensor:
    """Eq. 16 over near-equal segments: (n, D) -> (M, D)."""
    return torch.stack([x[a:b].mean(0) for a, b in segment_bounds(len(x), num_landmarks)])


def strided_tokens(x: Tensor, num_landmarks: int) -> Tensor:
    """The first token of each near-equal segment: (n, D) -> (M, D)."""
    return torch.stack([x[first] for first, _ in segment_bounds(len(x), num_landmarks)])


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    num_landmarks: int,
    iterations: int | None = 6,
    landmarks: Callable[[Tensor, int], Tensor] = segment_means,
) -> Tensor:
    """Eq. 15 among the valid tokens of each row, exact where a row has at most M of them.

    Args:
        landmarks: from tokens (n, D) and M, the landmarks (M, D).
        iterations: of eq. 14; None takes `torch.linalg.pinv` (eq. 13).
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        if len(qs) <= num_landmarks:
            return softmax_matrix(qs, ks) @ vs
        ql, kl = landmarks(qs, num_landmarks), landmarks(ks, num_landmarks)
        a = softmax_matrix(ql, kl)
        z = torch.linalg.pinv(a) if iterations is None else pseudo_inverse_steps(a, iterations)
        return softmax_matrix(qs, kl) @ z @ softmax_matrix(ql, ks) @ vs

    return per_row(attend, q, k, v, keep_BN)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """Katharopoulos et al. 2020, eq. 4 with φ(x) = elu(x) + 1: the N x N weights, each row divided by its sum."""
    return _kernel_attention(q, k, v, keep_BN, lambda x: torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0))))


def performer_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, features: Tensor) -> Tensor:
    """Choromanski et al. 2021, eq. 5, with the N x N weights written out.

    Args:
        features: the directions, (M, D).
    """
    return _kernel_attention(q, k, v, keep_BN, lambda x: positive_features(x, features.double()))


def positive_features(x: Tensor, features: Tensor) -> Tensor:
    """Their Lemma 1 for exp(qᵀk/√D): (…, n, D), (M, D) -> (…, n, M)."""
    scaled = x / x.shape[-1] ** 0.25
    return torch.exp(scaled @ features.T - scaled.square().sum(-1, keepdim=True) / 2) / len(features) ** 0.5


def _kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None, feature_map: Callable[[Tensor], Tensor]
) -> Tensor:
    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        weights = feature_map(qs) @ feature_map(ks).T
        return weights / weights.sum(1, keepdim=True) @ vs

    return per_row(attend, q, k, v, keep_BN)


def linformer_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, keys_GKL: Tensor, values_GKL: Tensor
) -> Tensor:
    """Wang et al. 2020, eq. 7; the n-th valid token of a row is projected by the n-th columns."""
    keys, values = (x.double().expand(q.shape[1], -1, -1) for x in (keys_GKL, values_GKL))

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        n = len(qs)
        return softmax_matrix(qs, keys[head, :, :n] @ ks) @ (values[head, :, :n] @ vs)

    return per_row(attend, q, k, v, keep_BN, with_heads=True)


def piecewise_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, keys_HSD: Tensor, values_HSD: Tensor
) -> Tensor:
    """Softmax attention to weighted sums of S valid tokens that follow each other, the last one of what is left."""
    stride = keys_HSD.shape[1]

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        pieces = [slice(start, start + stride) for start in range(0, len(ks), stride)]
        keys, values = (
            torch.stack([(x[piece] * weight.double()[head, : len(x[piece])]).sum(0) for piece in pieces])
            for x, weight in ((ks, keys_HSD), (vs, values_HSD))
        )
        return softmax_matrix(qs, keys) @ values

    return per_row(attend, q, k, v, keep_BN, with_heads=True)


def synthesizer_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, weight_HLD: Tensor
) -> Tensor:
    """Tay et al. 2021, "dense": softmax of scores that a token has from its query, by a learned map."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        return torch.softmax(qs.clamp(min=0) @ weight_HLD[head, : len(qs)].double().T, dim=-1) @ vs

    return per_row(attend, q, k, v, keep_BN, with_heads=True)


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
        return _softmax_over(qs, ks, vs, is_seen)

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
    across_buckets: bool = False,
) -> Tensor:
    """Kitaev et al. 2020, section 2: softmax over all that a token meets in some round of hashing.

    Args:
        rotations: R of each round, (rounds, D, columns).
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n = len(qs)
        chunks = -(-n // chunk_length)
        meets = torch.zeros(n, n, dtype=torch.bool)
        for rotation in rotations.double():
            buckets = hash_buckets(qs.detach(), rotation, chunks)
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
        return _softmax_over(qs, units, vs, meets)

    return per_row(attend, q, q, v, keep_BN)


def hash_buckets(x: Tensor, rotation: Tensor, chunks: int) -> list[int]:
    """h(x) = argmax([xR; −xR]) of each of the tokens (n, D); with more than 128 buckets two such hashes in one."""

    def hashed(columns: Tensor) -> Tensor:
        return torch.cat([x @ columns, -x @ columns], dim=1).argmax(1)

    if chunks == 1:
        return [0] * len(x)
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
        query_means, key_means = (x.sum(1) / there.sum(1, keepdim=True) for x in (queries, keys))
        scores = query_means @ key_means.T / dim**0.5
        permutation = sinkhorn_balanced(scores / temperature, iterations)
        some = there.any(0)
        share = (permutation @ there.double() / permutation.sum(1, keepdim=True))[:, None, some]
        keys_beside, values_beside = (torch.einsum("ij,jsd->isd", permutation, x)[:, some] for x in (keys, values))
        own = (queries @ keys.mT / dim**0.5).masked_fill(~there[:, None], float("-inf"))
        beside = queries @ keys_beside.mT / dim**0.5 + torch.log(share)
        weights = torch.softmax(torch.cat([own, beside], dim=2), dim=2)
        return (weights @ torch.cat([values, values_beside], dim=1)).reshape(-1, dim)[:n]

    return per_row(attend, q, k, v, keep_BN)


def sinkhorn_balanced(scores: Tensor, iterations: int) -> Tensor:
    """Their eq. of Sinkhorn balancing: rows, then columns are divided by their sums; (C, C) -> (C, C)."""
    balanced = torch.exp(scores)
    for _ in range(iterations):
        balanced = balanced / balanced.sum(1, keepdim=True)
        balanced = balanced / balanced.sum(0, keepdim=True)
    return balanced


def mra_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    block_size: int,
    num_blocks: int,
    neighbours: int,
) -> Tensor:
    """Zeng et al. 2022, MRA-2: exact scores in chosen blocks, elsewhere those of the blocks' means."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n, dim = qs.shape
        of_token = [token // block_size for token in range(n)]
        blocks = range(of_token[-1] + 1)
        members = [[token for token in range(n) if of_token[token] == block] for block in blocks]
        query_means, key_means, value_means = (torch.stack([x[m].mean(0) for m in members]) for x in (qs, ks, vs))
        per_block = query_means @ key_means.T / dim**0.5
        means = per_block[of_token]
        chosen = _chosen(per_block.tolist())
        weights = []
        exact = torch.exp(qs @ ks.T / dim**0.5)
        for token in range(n):
            row = chosen[of_token[token]]
            near = torch.tensor([of_token[other] in row for other in range(n)])
            far = torch.tensor([block not in row for block in blocks])
            sizes = torch.tensor([len(m) for m in members]).double()
            weights.append(torch.cat([exact[token] * near, torch.exp(means[token]) * sizes * far]))
        weight = torch.stack(weights)
        return weight @ torch.cat([vs, value_means]) / weight.sum(1, keepdim=True)

    def _chosen(scores: list[list[float]]) -> list[set[int]]:
        rows = range(len(scores))
        order = sorted(
            ((row, block) for row in rows for block in rows),
            key=lambda pair: (
                abs(pair[0] - pair[1]) > neighbours,
                max(scores[pair[0]]) - scores[pair[0]][pair[1]],
                pair,
            ),
        )
        taken = order[: num_blocks * len(rows)]
        return [{block for one, block in taken if one == row} for row in rows]

    return per_row(attend, q, k, v, keep_BN)


def near_far_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    block_size: int,
    neighbours: int,
    num_landmarks: int,
    num_selected: int,
    num_blocks: int,
    probes: int = 32,
) -> Tensor:
    """One softmax over what each token sees one by one, and over the means of near-equal segments of all else."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        n = len(qs)
        selected = set(_most_drawing(qs, ks, probes, num_selected))
        groups = [list(range(*bounds)) for bounds in segment_bounds(n, min(num_landmarks, n))]
        outs = []
        for block, seen_blocks in enumerate(_seen_blocks(qs, ks, block_size, neighbours, num_blocks)):
            seen = {token for token in range(n) if token // block_size in seen_blocks} | selected
            keys, values, bonus = [], [], []
            for members in [*([token] for token in sorted(seen)), *([t for t in g if t not in seen] for g in groups)]:
                if members:
                    keys.append(ks[members].mean(0))
                    values.append(vs[members].mean(0))
                    bonus.append(len(members))
            queries = qs[block * block_size : (block + 1) * block_size]
            scores = queries @ torch.stack(keys).T / qs.shape[1] ** 0.5 + torch.tensor(bonus).double().log()
            outs.append(torch.softmax(scores, dim=-1) @ torch.stack(values))
        return torch.cat(outs)

    return per_row(attend, q, k, v, keep_BN)


def _most_drawing(qs: Tensor, ks: Tensor, probes: int, count: int) -> list[int]:
    means = torch.stack([qs[start:end].mean(0) for start, end in segment_bounds(len(qs), min(probes, len(qs)))])
    drawn = softmax_matrix(means, ks).sum(0).tolist()
    return sorted(range(len(ks)), key=lambda token: (-drawn[token], token))[:count]


def _seen_blocks(qs: Tensor, ks: Tensor, size: int, neighbours: int, further: int) -> list[set[int]]:
    starts = range(0, len(qs), size)
    query_means, key_means = (torch.stack([x[s : s + size].mean(0) for s in starts]) for x in (qs, ks))
    scores = (query_means @ key_means.T).tolist()
    seen = []
    for block in range(len(starts)):
        near = {other for other in range(len(starts)) if abs(other - block) <= neighbours}
        others = [other for other in range(len(starts)) if other not in near]
        best = sorted(others, key=lambda other: (-scores[block][other], other))[:further]
        seen.append(near | set(best))
    return seen
