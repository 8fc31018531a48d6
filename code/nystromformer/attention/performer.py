"""Performer attention (Choromanski et al., "Rethinking Attention with Performers", ICLR 2021): FAVOR+.

Shapes: B batch, H heads, N tokens, D head dim, M random features.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention.linear import kernelised
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.redrawn import RedrawnAttention, generator_of
from nystromformer.attention.tracing import without_autocast
from nystromformer.config.attention.methods import PerformerConfig


class PerformerAttention(RedrawnAttention):
    """φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1), where E[φ(q)ᵀφ(k)] = exp(qᵀk/√D) (their eq. 5 and Lemma 1): O(N M D).

    The features are orthogonal within blocks of D (their section 2.4) and shared by the heads.
    """

    config: PerformerConfig
    numbers = "features_MD"
    features_MD: Tensor

    def drawn(self, seed: int, draw: int) -> Tensor:
        """Random features, float32."""
        return orthogonal_features(self.config.num_features, self.head_dim, seed, draw)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            queries_BHNM, keys_BHNM = self._features(q.to(dtype), k.to(dtype), mask)
            return kernelised(queries_BHNM, keys_BHNM, v.to(dtype)).to(q.dtype)

    def _features(self, q: Tensor, k: Tensor, mask: AttentionMask | None) -> tuple[Tensor, Tensor]:
        """Of queries and keys, up to one positive factor for each query and one for all keys of a row and head, which
        the division takes out again.
        """
        scale = self.head_dim**-0.25
        projection_DM = self.features_MD.to(q.dtype).T * scale
        queries_BHNM, keys_BHNM = q @ projection_DM, k @ projection_DM
        # Of the query's own norm nothing is left after the division.
        keys_BHNM = keys_BHNM - k.square().sum(-1, keepdim=True) * (scale * scale / 2)
        if mask is not None:
            keys_BHNM = keys_BHNM + mask.bias(q.dtype).mT
        queries_BHNM = queries_BHNM - queries_BHNM.detach().amax(-1, keepdim=True)
        keys_BHNM = keys_BHNM - keys_BHNM.detach().amax((-1, -2), keepdim=True)
        return queries_BHNM.exp(), keys_BHNM.exp()


def orthogonal_features(count: int, dim: int, seed: int, draw: int) -> Tensor:
    """Directions (count, dim), float32: each alone is standard normal; within a block of `dim` they are orthogonal.

    Args:
        seed, draw: what they are a function of.
    """
    normal: dict[str, Any] = {"generator": generator_of(seed, draw), "dtype": torch.float64, "device": "cpu"}
    blocks = []
    for _ in range(math.ceil(count / dim)):
        directions, triangle = torch.linalg.qr(torch.randn(dim, dim, **normal))
        # With the signs that make the directions uniformly distributed.
        blocks.append((directions * triangle.diagonal().sign()).T)
    norms = torch.randn(count, dim, **normal).norm(dim=1, keepdim=True)
    return (torch.cat(blocks)[:count] * norms).float()
