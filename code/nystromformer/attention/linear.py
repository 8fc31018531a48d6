"""Linear attention (Katharopoulos et al., "Transformers are RNNs", ICML 2020): a kernel in the exponential's place.

Shapes: B batch, H heads, N tokens, D head dim, F features.
"""

from typing import Any

import torch
from torch import Tensor

from nystromformer.attention.base import Attention
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.tracing import is_plain, without_autocast

_FEW, _PIECE = 1 << 20, 1 << 17
"""Numbers that are computed whole on a CPU, and in a piece of what is more."""


class LinearAttention(Attention):
    """φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1) with φ(x) = elu(x) + 1 (their eq. 5 and 7): time and memory O(N D²).

    The weights are positive and add up to one, as softmax's do; there is no scale of 1/√D. Sums over the tokens run in
    float32 whatever the input's precision.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        dtype = torch.promote_types(q.dtype, torch.float32)
        with without_autocast(q):
            queries_BHND, keys_BHND = (_elu_plus_one(x.to(dtype)) for x in (q, k))
            if mask is not None:
                # φ(0) is 1: a masked key has a weight unless it is taken away.
                keys_BHND = keys_BHND * mask.multiplier(dtype)
            return kernelised(queries_BHND, keys_BHND, v.to(dtype)).to(q.dtype)


def kernelised(queries_BHNF: Tensor, keys_BHNF: Tensor, v_BHND: Tensor) -> Tensor:
    """φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1) of F positive features, evaluated right to left; (B, H, N, D)."""
    values_BHFD = keys_BHNF.mT @ v_BHND
    total_BHN1 = torch.einsum("bhnf,bhf->bhn", queries_BHNF, keys_BHNF.sum(2))[..., None]
    # Infinity where there is nothing to divide by, in a row without valid tokens or where all has underflown. Zero is
    # given there then, and no gradient, where a quotient of zeros would be NaN, and one of all but nothing could have
    # no finite derivative.
    total_BHN1 = total_BHN1.masked_fill(total_BHN1 < torch.finfo(total_BHN1.dtype).tiny ** 0.8, float("inf"))
    out_BHND = queries_BHNF @ values_BHFD
    # In place where no gradient asks for what stood there: at long inputs a further tensor costs as much as a product.
    return out_BHND / total_BHN1 if torch.is_grad_enabled() else out_BHND.div_(total_BHN1)


def _elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, in which the 1 that elu takes away does not swallow the small values of exp(x)."""
    if is_plain():
        return x.clamp(max=0).exp() + x.relu()
    if torch.is_grad_enabled() and x.requires_grad:
        features: Tensor = _EluPlusOne.apply(x)
        return features
    return _in_one_tensor(x)


class _EluPlusOne(torch.autograd.Function):
    """The same in one tensor, and with one for the gradient: at long inputs each further one costs as much as a
    product.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = _in_one_tensor(x)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        # exp(x) where x is negative, which is what the features are there, and 1 elsewhere.
        return features.clamp(max=1).mul_(grad)


def _in_one_tensor(x: Tensor) -> Tensor:
    whole = x.transpose(1, 2) if x.ndim == 4 and not x.is_contiguous() else x
    if x.device.type != "cpu" or x.numel() <= _FEW or not whole.is_contiguous():
        return x.clamp(max=0).exp_().add_(x.clamp(min=0))
    # In pieces that stay in the cache from one step to the next.
    features = torch.empty_like(whole)
    spare = x.new_empty(_PIECE)
    for piece, part in zip(whole.view(-1).split(_PIECE), features.view(-1).split(_PIECE), strict=True):
        torch.clamp(piece, max=0, out=part).exp_().add_(torch.clamp(piece, min=0, out=spare[: len(piece)]))
    return features if whole is x else features.transpose(1, 2)
