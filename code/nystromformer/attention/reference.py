"""Slow, plain oracles in float64, written from the paper's equations; nothing here is shared with the modules.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, K taps.
Differentiable, so that gradients have an oracle too.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor


def softmax_matrix(q: Tensor, k: Tensor) -> Tensor:
    """S of eq. 2: (n, D), (m, D) -> (n, m), rows summing to one."""
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1)


def pseudo_inverse_steps(a: Tensor, iterations: int, norm: Tensor) -> Tensor:
    """Eq. 14 from Z₀ = Aᵀ / norm: (m, m) -> (m, m)."""
    eye = torch.eye(len(a), dtype=a.dtype)
    z = a.T / norm
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def start_norm(a: Tensor) -> Tensor:
    """‖A‖₁ ‖A‖∞ of one matrix."""
    return a.abs().sum(0).max() * a.abs().sum(1).max()


def segment_bounds(n: int, num_landmarks: int) -> list[tuple[int, int]]:
    """Near-equal segments of n ≥ M tokens: segment j holds the tokens r with ⌊r·M/n⌋ = j."""
    members = [[r for r in range(n) if r * num_landmarks // n == j] for j in range(num_landmarks)]
    return [(group[0], group[-1] + 1) for group in members]


def segment_means(x: Tensor, num_landmarks: int) -> Tensor:
    """Eq. 16 over near-equal segments: (n, D) -> (M, D)."""
    return torch.stack([x[a:b].mean(0) for a, b in segment_bounds(len(x), num_landmarks)])


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """Eq. 2 among the valid tokens of each row: (B, H, N, D) -> (B, H, N, D), zero elsewhere."""
    return _per_row(lambda qs, ks, vs: softmax_matrix(qs, ks) @ vs, q, k, v, keep_BN)


def pattern_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, allowed: Callable[[int, int], Tensor]
) -> Tensor:
    """Eq. 2 over some of the valid tokens of each row.

    Args:
        allowed: from the number of valid tokens n and the head, which tokens each attends to: (n, n) bool.
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        scores = qs @ ks.T / qs.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~allowed(len(qs), head), float("-inf")), dim=-1) @ vs

    return _per_row(attend, q, k, v, keep_BN, with_heads=True)


def longformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    window: int,
    steps: Sequence[int],
    num_first: int,
    marked_BN: Tensor | None = None,
    changes_2HDD: Tensor | None = None,
) -> Tensor:
    """Beltagy et al. 2020, section 3.1, with the N x N weights written out.

    Args:
        steps: the dilation of each head.
        num_first: valid tokens at the beginning that are global.
        marked_BN: others.
        changes_2HDD: what the projections of global queries, and of the values that they attend to, have beside I.
    """
    everywhere = torch.arange(q.shape[2]).expand(q.shape[0], -1)
    marks = everywhere.new_zeros(everywhere.shape) if marked_BN is None else marked_BN.long()
    changes = None if changes_2HDD is None else changes_2HDD.double()

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int, row: Tensor) -> Tensor:
        places = torch.arange(len(qs))
        is_global = (places < num_first) | row.bool()
        distance = (places[:, None] - places).abs()
        is_near = (distance % steps[head] == 0) & (distance <= window // 2 * steps[head])
        scores = qs @ ks.T / qs.shape[-1] ** 0.5
        out = torch.softmax(scores.masked_fill(~(is_near | is_global), float("-inf")), dim=-1) @ vs
        if changes is not None:
            qs, vs = qs + qs @ changes[0, head], vs + vs @ changes[1, head]
        return torch.where(is_global[:, None], softmax_matrix(qs, ks) @ vs, out)

    return _per_row(attend, q, k, v, keep_BN, with_heads=True, of_tokens=marks)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """Katharopoulos et al. 2020, eq. 4 with φ(x) = elu(x) + 1: the N x N weights, each row divided by its sum."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        weights = _elu_plus_one(qs) @ _elu_plus_one(ks).T
        return weights / weights.sum(1, keepdim=True) @ vs

    return _per_row(attend, q, k, v, keep_BN)


def _elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def performer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    features: Tensor,
    kernel: Literal["softmax", "relu"] = "softmax",
) -> Tensor:
    """Choromanski et al. 2021, eq. 5, with the N x N weights written out.

    Args:
        features: the directions, (M, D).
    """
    feature_map = positive_features if kernel == "softmax" else _relu_features

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        weights = feature_map(qs, features.double()) @ feature_map(ks, features.double()).T
        return weights / weights.sum(1, keepdim=True) @ vs

    return _per_row(attend, q, k, v, keep_BN)


def positive_features(x: Tensor, features: Tensor) -> Tensor:
    """Their Lemma 1 for exp(qᵀk/√D): (…, n, D), (M, D) -> (…, n, M)."""
    scaled = x / x.shape[-1] ** 0.25
    return torch.exp(scaled @ features.T - scaled.square().sum(-1, keepdim=True) / 2) / len(features) ** 0.5


def _relu_features(x: Tensor, features: Tensor) -> Tensor:
    return (x / x.shape[-1] ** 0.25 @ features.T).clamp(min=0) + 1e-3


def linformer_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, keys_GKL: Tensor, values_GKL: Tensor
) -> Tensor:
    """Wang et al. 2020, eq. 7; the n-th valid token of a row is projected by the n-th columns."""
    keys, values = (x.double().expand(q.shape[1], -1, -1) for x in (keys_GKL, values_GKL))

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        n = len(qs)
        return softmax_matrix(qs, keys[head, :, :n] @ ks) @ (values[head, :, :n] @ vs)

    return _per_row(attend, q, k, v, keep_BN, with_heads=True)


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

    return _per_row(attend, q, k, v, keep_BN, with_heads=True)


def bigbird_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    allowed: Callable[[int, int], Tensor],
    extra: Tensor | None = None,
) -> Tensor:
    """Zaheer et al. 2020, section 2, over a pattern of a row's tokens and learned ones beside them.

    Args:
        allowed: as of `pattern_attention`.
        extra: queries, keys and values of learned global tokens, (3, H, E, D). They attend to all tokens and to each
            other; all tokens attend to their keys, and get what they got.
    """
    if extra is None:
        return pattern_attention(q, k, v, keep_BN, allowed=allowed)
    learned = extra.double()

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        queries, keys, values = learned[:, head]
        all_keys = torch.cat([ks, keys])
        read = softmax_matrix(queries, all_keys) @ torch.cat([vs, values])
        pattern = torch.cat([allowed(len(qs), head), torch.ones(len(qs), len(keys), dtype=torch.bool)], 1)
        scores = qs @ all_keys.T / qs.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~pattern, float("-inf")), dim=-1) @ torch.cat([vs, read])

    return _per_row(attend, q, k, v, keep_BN, with_heads=True)


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


def strided_tokens(x: Tensor, num_landmarks: int) -> Tensor:
    """The first token of each near-equal segment: (n, D) -> (M, D)."""
    return torch.stack([x[first] for first, _ in segment_bounds(len(x), num_landmarks)])


def lloyd_centres(x: Tensor, num_landmarks: int, iterations: int) -> Tensor:
    """Lloyd's iterations from the segments' means, which a centre without tokens falls back to: (n, D) -> (M, D)."""
    means = segment_means(x, num_landmarks)
    centres = means
    for _ in range(iterations):
        nearest = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1).tolist()
        members = [[r for r, centre in enumerate(nearest) if centre == j] for j in range(num_landmarks)]
        centres = torch.stack([x[own].mean(0) if own else means[j] for j, own in enumerate(members)])
    return centres


def synthesizer_attention(
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, scores: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Tay et al. 2021: softmax of scores without keys.

    Args:
        scores: from the queries (n, D) of a row's valid tokens and the head, (n, n).
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        return torch.softmax(scores(qs, head), dim=-1) @ vs

    return _per_row(attend, q, k, v, keep_BN, with_heads=True)


def pairwise_products(first: Tensor, second: Tensor, count: int) -> Tensor:
    """Their factorised dense scores: (n, P), (n, S) -> (n, count), the pairs in the order of a nested loop."""
    pairs = [first[:, i] * second[:, j] for i in range(first.shape[1]) for j in range(second.shape[1])]
    return torch.stack(pairs[:count], dim=1)


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

    return _per_row(attend, q, k, v, keep_BN)


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
        z = torch.linalg.pinv(a) if iterations is None else pseudo_inverse_steps(a, iterations, start_norm(a))
        return softmax_matrix(qs, kl) @ z @ softmax_matrix(ql, ks) @ vs

    return _per_row(attend, q, k, v, keep_BN)


def fixed_segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    num_landmarks: int,
    iterations: int = 6,
    masked_tokens: Literal["zero", "included"] = "zero",
) -> Tensor:
    """The authors' attention: fixed segments over the padded length, one start value for the whole batch.

    Args:
        masked_tokens: how masked tokens enter the landmarks: as zeros (the authors), or as they are (transformers).
    """
    q, k, v = q.double(), k.double(), v.double()
    B, H, N, _ = q.shape
    keep = torch.ones(B, N, dtype=torch.bool) if keep_BN is None else keep_BN
    length = N // num_landmarks
    pairs = {}
    for b in range(B):
        for h in range(H):
            weight = keep[b].double()[:, None] if masked_tokens == "zero" else torch.ones(N, 1).double()
            ql = torch.stack([(q[b, h] * weight)[i : i + length].mean(0) for i in range(0, N, length)])
            kl = torch.stack([(k[b, h] * weight)[i : i + length].mean(0) for i in range(0, N, length)])
            pairs[b, h] = ql, kl, softmax_matrix(ql, kl)
    norm = torch.stack([a.sum(0).max() for _, _, a in pairs.values()]).max()
    out = torch.zeros_like(q)
    for (b, h), (ql, kl, a) in pairs.items():
        valid = keep[b]
        z = pseudo_inverse_steps(a, iterations, norm)
        context = softmax_matrix(ql, k[b, h][valid]) @ v[b, h][valid]
        out[b, h, valid] = softmax_matrix(q[b, h][valid], kl) @ z @ context
    return out


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

    return _per_row(attend, q, q, v, keep_BN)


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


def _per_row(attend, q, k, v, keep_BN, with_heads=False, of_tokens=None):  # type: ignore[no-untyped-def]
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
