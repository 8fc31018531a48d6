"""Linear attention (Katharopoulos et al., "Transformers are RNNs", ICML 2020): a kernel in the exponential's place.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import Attention
from nystromformer.attention.mask import AttentionMask


class LinearAttention(Attention):
    """φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1) with φ(x) = elu(x) + 1 (their eq. 5 and 7): time and memory O(N D²).

    The weights are positive and add up to one, as softmax's do; there is no scale of 1/√D. Sums over the tokens run in
    float32 whatever the input's precision.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        dtype = q.dtype if q.dtype == torch.float64 else torch.float32
        with torch.autocast(q.device.type, enabled=False):
            queries_BHND, keys_BHND = (F.elu(x.to(dtype)) + 1 for x in (q, k))
            if mask is not None:
                # φ(0) is 1: a masked key has a weight unless it is taken away.
                keys_BHND = keys_BHND * mask.multiplier(dtype)
            values_BHDD = keys_BHND.mT @ v.to(dtype)
            sums_BHD1 = keys_BHND.sum(2).unsqueeze(-1)
            # Zero where a row has no valid token, or where every feature has underflown.
            total_BHN1 = (queries_BHND @ sums_BHD1).clamp_min(torch.finfo(dtype).tiny)
            return (queries_BHND @ values_BHDD / total_BHN1).to(q.dtype)
