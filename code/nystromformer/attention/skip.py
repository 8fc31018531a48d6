"""The convolution skip: a depthwise convolution of V along the tokens, added to the attention (paper, Figure 4).

Shapes: B batch, H heads, N tokens, D head dim, K taps.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.tracing import is_exporting, is_plain, once_differentiable

# Rows of a block of the banded product in the weight's gradient. Larger blocks waste work on zeros (C + K - 1 columns
# for K taps), smaller ones make the products too small; 32 was the fastest of 32, 64 and 128 at K = 33.
_BLOCK = 32
# Elements of the products that are held at a time: they fit the cache, and memory does not grow with the length.
_PRODUCTS = 2**18


class ConvolutionSkip(nn.Module):
    """`skip(v_BHND, out_BHND) -> out_BHND + conv(v_BHND)`; one filter per head, shared by the head's dimensions.

    The weight has the authors' shape (H, 1, K, 1).
    """

    def __init__(self, num_heads: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, 1, kernel_size, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # nn.Conv2d's own initialisation, as in the authors' code.
        bound = self.weight.shape[2] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, v: Tensor, out: Tensor, mask: AttentionMask | None = None) -> Tensor:
        """The convolution of V added to an attention's output.

        Args:
            v, out: (B, H, N, D).
            mask: where the sum is zero.
        """
        return add_convolution(v, self.weight, out, mask)

    def extra_repr(self) -> str:
        return f"kernel_size={self.weight.shape[2]}"


def add_convolution(v_BHND: Tensor, weight_H1K1: Tensor, out_BHND: Tensor, mask: AttentionMask | None = None) -> Tensor:
    """out + conv(V), zero at masked positions, where conv takes each head's V along the tokens with that head's filter,
    zeros beyond both ends; (B, H, N, D)."""
    is_own = v_BHND.device.type == "cpu" and v_BHND.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if is_own and not is_plain():
        own: Tensor = _CpuConvolution.apply(v_BHND, weight_H1K1.float(), out_BHND, mask)
        return own
    if is_own and not is_exporting():
        with torch.autocast("cpu", enabled=False):
            total = (_convolved(v_BHND.float(), weight_H1K1.float()) + out_BHND).to(out_BHND.dtype)
    else:
        weight_H1K1 = weight_H1K1.to(v_BHND.dtype)
        padding = (weight_H1K1.shape[2] // 2, 0)
        total = F.conv2d(v_BHND, weight_H1K1, padding=padding, groups=v_BHND.shape[1]) + out_BHND
    return total if mask is None else mask.zeroed(total)


class _CpuConvolution(torch.autograd.Function):
    """The same on a CPU, where conv2d with a (K, 1) kernel runs at a tenth of the speed of a matrix product.

    Forward and the gradient of V are depthwise convolutions over H·D channels, vectorised over the channels; the
    gradient of the weight is a sum of banded matrix products. The sum is taken in place: at long inputs every further
    tensor costs as much as the arithmetic. 16-bit values are convolved in float32: for their weight gradient conv2d
    takes several times as long. (conv2d's own float32 weight gradient is also off by more than 1 % at some lengths:
    torch 2.13 on an AVX2 CPU, H = 12, N = 4096, D = 64, K = 33.)
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, weight: Tensor, out: Tensor, mask: AttentionMask | None) -> Tensor:
        ctx.save_for_backward(v, weight)
        ctx.mask = mask
        with torch.autocast("cpu", enabled=False):
            total = _convolve_channels(v.float(), weight).add_(out)
            if mask is not None:
                kept_bits = mask.kept_bits(total.dtype)
                total.view(kept_bits.dtype).bitwise_and_(kept_bits)
            return total.to(out.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, None]:
        v, weight = ctx.saved_tensors
        if ctx.mask is not None:
            grad = ctx.mask.zeroed(grad)
        elif any(stride == 0 and size > 1 for stride, size in zip(grad.stride(), grad.shape, strict=True)):
            # The gradient of a sum is few numbers, seen again and again: the convolution would go through such a view
            # at a tenth of its speed.
            grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
        with torch.autocast("cpu", enabled=False):  # a caller may run backward under it
            wide = grad.float()
            grad_v = _convolve_channels(wide, weight.flip(2)).to(v.dtype) if ctx.needs_input_grad[0] else None
            grad_weight = _weight_gradient(v, wide, weight.shape[2]) if ctx.needs_input_grad[1] else None
        return grad_v, grad_weight, grad, None


def _convolve_channels(x_BHND: Tensor, weight_H1K1: Tensor) -> Tensor:
    B, H, N, D = x_BHND.shape
    K = weight_H1K1.shape[2]
    x_BC1N = x_BHND.transpose(1, 2).reshape(B, 1, N, H * D).permute(0, 3, 1, 2)
    weight_C11K = weight_H1K1.view(H, 1, 1, K).repeat_interleave(D, 0).contiguous(memory_format=torch.channels_last)
    out_BC1N = F.conv2d(x_BC1N, weight_C11K, padding=(0, K // 2), groups=H * D)
    return out_BC1N.permute(0, 2, 3, 1).reshape(B, N, H, D).transpose(1, 2)


@torch.library.custom_op("nystromformer::convolved", mutates_args=(), device_types="cpu")
def _convolved(v: Tensor, weight: Tensor) -> Tensor:
    """The same in a compiled graph, float32: its gradient of the weight as of `_CpuConvolution`."""
    with torch.autocast("cpu", enabled=False):
        return _convolve_channels(v, weight)


@_convolved.register_fake
def _(v: Tensor, weight: Tensor) -> Tensor:
    B, H, N, D = v.shape
    return v.new_empty(B, N, H, D).transpose(1, 2)


@torch.library.custom_op("nystromformer::convolution_weight_gradient", mutates_args=(), device_types="cpu")
def _weight_gradient_in_graphs(v: Tensor, grad: Tensor, taps: int) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return _weight_gradient(v, grad, taps)


@_weight_gradient_in_graphs.register_fake
def _(v: Tensor, grad: Tensor, taps: int) -> Tensor:
    return grad.new_empty(v.shape[1], 1, taps, 1)


def _keep_for_gradients(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients_in_graphs(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    v, weight = ctx.saved_tensors
    return _convolved(grad, weight.flip(2)), _weight_gradient_in_graphs(v, grad, weight.shape[2])


_convolved.register_autograd(_gradients_in_graphs, setup_context=_keep_for_gradients)


def _weight_gradient(v_BHND: Tensor, grad_BHND: Tensor, K: int) -> Tensor:
    """Σ over b, n, d of grad[n, d]·v[n + k − K//2, d], as (H, 1, K, 1), in the gradient's dtype.

    A block of C rows of the gradient times the C + K − 1 rows of V that they saw, (C, D) @ (D, C + K − 1), holds the
    sums for the taps on its diagonals. Blocks overlap in V: they are views into one padded copy.
    """
    B, H, N, D = v_BHND.shape
    C, W = _BLOCK, _BLOCK + K - 1
    blocks = -(-(N + K - 1) // C)
    # Several short heads at a time, or one long head in several parts.
    group = max(1, min(H, _PRODUCTS // (blocks * C * W)))
    part = blocks if group > 1 else max(1, _PRODUCTS // (C * W))
    # Each head takes blocks·C rows, its own padding included, so that the windows of all heads have one stride.
    v_pad = grad_BHND.new_zeros(group * blocks * C + K - 1, D)
    grad_pad = grad_BHND.new_zeros(group, blocks * C, D)
    windows = v_pad.as_strided((group, blocks, W, D), (blocks * C * D, C * D, D, 1))
    body = v_pad[: group * blocks * C].view(group, blocks * C, D)[:, K // 2 : K // 2 + N]
    products_HCW = grad_BHND.new_zeros(H, C, W)
    for b in range(B):
        for first in range(0, H, group):
            heads = slice(first, min(first + group, H))
            count = heads.stop - first
            body[:count].copy_(v_BHND[b, heads])
            grad_pad[:count, :N].copy_(grad_BHND[b, heads])
            for block in range(0, blocks, part):
                rows = grad_pad.view(group, blocks, C, D)[:count, block : block + part].reshape(-1, C, D)
                seen = windows[:count, block : block + part].reshape(-1, W, D)
                products_HCW[heads] += torch.bmm(rows, seen.mT).view(count, -1, C, W).sum(1)
    return products_HCW.as_strided((H, C, K), (C * W, W + 1, 1)).sum(1).view(H, 1, K, 1)
