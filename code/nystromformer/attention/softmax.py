"""Exact softmax attention (eq. 2) through PyTorch's fused kernels."""

import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import Attention
from nystromformer.attention.mask import AttentionMask


class SoftmaxAttention(Attention):
    """softmax(QKᵀ/√D) V: time O(N²), memory O(N)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bias(q.dtype))
