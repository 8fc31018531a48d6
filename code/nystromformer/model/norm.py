"""Norms of the vectors between layers.

Shapes: E width of a vector, the last dimension.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.tracing import once_differentiable
from nystromformer.config import ModelConfig


def build_norm(config: ModelConfig, width: int) -> nn.Module:
    """A norm of vectors of a width, as `norm_type` says."""
    if config.norm_type == "rms_norm":
        return RMSNorm(width, config.layer_norm_eps)
    return nn.LayerNorm(width, config.layer_norm_eps, bias=config.bias)


class RMSNorm(nn.RMSNorm):
    """x / RMS(x) times a weight (Zhang and Sennrich 2019); torch's, but in training on a CPU, where that is made of
    many small operations and takes four times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        tracing = torch.compiler.is_compiling() or torch.compiler.is_exporting()
        if tracing or type(x) is not Tensor or x.device.type != "cpu" or x.dtype != torch.float32:
            return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        normed: Tensor = _CpuRMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return normed


class _CpuRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        out: Tensor = (x * inverse).mul_(weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        # One pass by the layer norm's own kernel, told a mean of 0; what the mean has in its gradient is put back.
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, [x.shape[-1]], torch.zeros_like(inverse), inverse, weight, None, [True, True, False]
        )
        return of_x.addcmul_(inverse, (grad @ weight)[..., None], value=1 / x.shape[-1]), of_weight, None
