"""Attention with another kernel, to fewer keys, or without any.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nystromformer.attention.reference.rows import per_row, softmax_matrix


def linear_attention(q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None) -> Tensor:
    """Katharopoulos et al. 2020, eq. 4 with φ(x) = elu(x) + 1: the N x N weights, each row divided by its sum."""

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        weights = _elu_plus_one(qs) @ _elu_plus_one(ks).T
        return weights / weights.sum(1, keepdim=True) @ vs

    return per_row(attend, q, k, v, keep_BN)


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

    return per_row(attend, q, k, v, keep_BN)


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
    q: Tensor, k: Tensor, v: Tensor, keep_BN: Tensor | None = None, *, scores: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """Tay et al. 2021: softmax of scores without keys.

    Args:
        scores: from the queries (n, D) of a row's valid tokens and the head, (n, n).
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor, head: int) -> Tensor:
        return torch.softmax(scores(qs, head), dim=-1) @ vs

    return per_row(attend, q, k, v, keep_BN, with_heads=True)
