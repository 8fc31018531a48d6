"""Exact attention, and what all oracles stand on: rows and heads one by one.

Shapes: B batch, H heads, N tokens, D head dim, K taps.
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
        scores = qs @ ks.T / qs.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~allowed(len(qs), head), float("-inf")), dim=-1) @ vs

    return per_row(attend, q, k, v, keep_BN, with_heads=True)


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
