"""Exact softmax attention (eq. 2) through PyTorch's fused kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import Attention
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.scores import default_scale


class SoftmaxAttention(Attention):
    """softmax(QKᵀ/√D) V: time O(N²), memory O(N)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bias(q.dtype))

    def rows_of_weights(self, q: Tensor, k: Tensor, mask: AttentionMask | None, queries: list[int]) -> Tensor:
        """The chosen queries' scores alone, in O(N) time."""
        scores_BHQN = q[:, :, queries] @ k.mT * default_scale(self.head_dim)
        if mask is None:
            return torch.softmax(scores_BHQN, dim=-1)
        keep_B1N1 = mask.multiplier(q.dtype)
        scores_BHQN = scores_BHQN.masked_fill(~mask.keys_BN[:, None, None], float("-inf"))
        return torch.softmax(scores_BHQN, dim=-1) * keep_B1N1[:, :, queries] * keep_B1N1.mT
